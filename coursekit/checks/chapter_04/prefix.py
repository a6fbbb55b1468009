"""Checks of chapter 4: the prefix cache (4.3) and the blocks of a beam search (4.4)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from coursekit.beam_tree import living, versions
from coursekit.checks.answers import show
from coursekit.checks.chapter_02.memory import told
from coursekit.checks.framework import (
    CHANGES,
    SHARED,
    Arguments,
    Exercise,
    Wrong,
    as_list,
    difference,
    is_whole,
    keep_apart,
)

PREFIX = Exercise(
    "4.3",
    answers=("PrefixCache",),
    misconceptions={
        "parent-ignored": "The same tokens after a different prefix were treated as a hit, but their keys and "
        "values differ. A block's cache key must cover everything before the block, too.",
        "mid-sequence": "A hit starts or continues after a block that is not in the cache: stop at the first "
        "missing block.",
        "partial-cached": "A partly filled block was published: its last slots are not written yet, or will be "
        "rewritten.",
        "takes-all": "All n tokens came from the cache. The model must run on the last token to predict the next "
        "one: use at most n - 1.",
        "collision": "Two different blocks have the same cache key: it must depend on the token order and the token "
        "boundaries.",
        "stale": "A block with new contents was found under its old ones.",
        "salt-ignored": "Sequences with different salts found each other's blocks.",
        "not-found": "Blocks that are in the cache were not found.",
        "block-zero": "The lookup ends before block 0 as if it were not there. Block 0 is a block like any other: "
        "compare with None, since `if not block` is true for 0.",
        **CHANGES,
        **SHARED,
        "wrong-block": "The blocks that were found do not hold this prefix.",
    },
)


class _Filed:
    """A cache under test, and the contents that the check expects in it."""

    def __init__(self, PrefixCache: Any, block_size: int) -> None:
        self.cache, self.size = PrefixCache(block_size), block_size
        self.holders: dict[tuple[Any, tuple[int, ...]], list[int]] = {}  # (salt, prefix) -> blocks
        self.story = [f"PrefixCache({block_size})"]

    def told(self) -> str:
        return told(self.story, 4)

    def publish(self, tokens: list[int], blocks: list[int], salt: Any = None) -> None:
        more = "" if salt is None else f", {salt!r}"
        self.story.append(f"publish({show(tokens)}, {show(blocks)}{more})")
        given = Arguments(token_ids=list(tokens), blocks=list(blocks))
        self.cache.publish(*given.passed(), *([salt] if salt is not None else []))
        given.check_unchanged(self.told())
        for i in range(len(tokens) // self.size):
            self.holders.setdefault((salt, tuple(tokens[: (i + 1) * self.size])), []).append(blocks[i])

    def forget(self, block: int) -> None:
        self.story.append(f"forget({block})")
        self.cache.forget(block)
        for blocks in self.holders.values():
            while block in blocks:
                blocks.remove(block)

    def lookup(self, tokens: list[int], key: str, salt: Any = None) -> list[int]:
        """Look up and compare; `key` is the misconception if the answer finds more than is there."""
        more = "" if salt is None else f", {salt!r}"
        call = f"{self.told()}; lookup({show(tokens)}{more})"
        given = Arguments(token_ids=list(tokens))
        got = as_list(self.cache.lookup(*given.passed(), *([salt] if salt is not None else [])))
        given.check_unchanged(call)
        known = 0
        usable = (len(tokens) - 1) // self.size
        while known < usable and self.holders.get((salt, tuple(tokens[: (known + 1) * self.size]))):
            known += 1
        right = [self.holders[salt, tuple(tokens[: (i + 1) * self.size])] for i in range(known)]
        expected = [blocks[0] for blocks in right]
        if len(got) > known:
            raise Wrong(key, difference(call, expected, got))
        for block, blocks in zip(got, right, strict=False):
            if not is_whole(block) or block not in blocks:
                raise Wrong("wrong-block", difference(call, expected, got))
        if 0 in expected[len(got) : len(got) + 1]:
            raise Wrong("block-zero", difference(call, expected, got))
        if len(got) < known:
            raise Wrong("not-found", difference(call, expected, got))
        return [int(block) for block in got]


def _tokens(rng: Random, n: int) -> list[int]:
    return [rng.randint(100, 999) for _ in range(n)]


@PREFIX.part("full blocks, from the start, n - 1 tokens at most", points=3)
def _beginning(rng: Random, PrefixCache: Any) -> None:
    for size, place in ((4, 1), (rng.randint(2, 8), 0)):
        filed = _Filed(PrefixCache, size)
        a, blocks = _tokens(rng, 3 * size + size // 2), rng.sample(range(3, 60), 4)
        blocks[place] = (
            0  # never the last full one: an answer that misses the last does not fail for its number
        )
        filed.lookup(a, "wrong-block")
        filed.publish(a, blocks)
        filed.lookup([*a, 5], "partial-cached")
        filed.lookup(a, "partial-cached")
        filed.lookup([*a[: 2 * size], *_tokens(rng, 1)], "wrong-block")
        filed.lookup(a[: 2 * size], "takes-all")
        filed.lookup(a[:size], "takes-all")
        filed.lookup(a[:1], "takes-all")
        full, blocks = _tokens(rng, 3 * size), rng.sample(range(60, 99), 3)
        filed.publish(full, blocks)
        filed.lookup(full, "takes-all")
        filed.lookup([*full, 5], "wrong-block")
    first = _tokens(rng, 8)
    keep_apart(
        lambda: _take_turns(PrefixCache, [first]), lambda: _take_turns(PrefixCache, [first, _tokens(rng, 8)])
    )


def _take_turns(PrefixCache: Any, prompts: list[list[int]]) -> None:
    """Each cache is asked for all prompts, and knows its own."""
    caches = [_Filed(PrefixCache, 4) for _ in prompts]
    for i, cache in enumerate(caches):
        cache.publish(prompts[i], [2 * i + 5, 2 * i + 6])
    for cache in caches:
        for prompt in prompts:
            cache.lookup([*prompt, 1], "wrong-block")


@PREFIX.part("the same tokens elsewhere, and other tokens", points=3)
def _elsewhere(rng: Random, PrefixCache: Any) -> None:
    for size in (4, rng.randint(3, 8)):
        filed = _Filed(PrefixCache, size)
        first, second, third, fourth = (_tokens(rng, size) for _ in range(4))
        filed.publish([*first, *second, *fourth], [7, 3, 9])
        filed.lookup([*second, 1], "parent-ignored")
        filed.publish([*third], [11])
        filed.lookup([*third, *second, 1], "parent-ignored")
        filed.lookup([*first, *second, *second, 1], "parent-ignored")
        filed.publish([*third, *second], [11, 4])
        filed.lookup([*third, *second, *fourth, 1], "parent-ignored")
        # The same digits in another order, and split at other places.
        ones, other = [1, 11, *[5] * (size - 2)], [11, 1, *[5] * (size - 2)]
        filed.publish(ones, [20])
        filed.lookup([*other, 1], "collision")
        filed.lookup([*ones[::-1], 1], "collision")
        filed.lookup([*ones, 1], "wrong-block")


@PREFIX.part("a block gets new contents", points=2)
def _recycled(rng: Random, PrefixCache: Any) -> None:
    for size, place in ((4, 2), (rng.randint(2, 8), 1), (5, 0)):
        filed = _Filed(PrefixCache, size)
        a, b = _tokens(rng, 3 * size), _tokens(rng, 2 * size)
        ids = rng.sample(range(1, 60), 5)
        ids[place] = 0  # each of the three blocks is block 0 once
        x, y, z, v, w = ids
        filed.publish(a, [x, y, z])
        filed.forget(w)
        filed.forget(z)
        filed.lookup([*a, 1], "stale")
        filed.publish(b, [z, v])  # the recycled block with its new contents
        filed.lookup([*b, 1], "stale")
        filed.lookup([*a, 1], "stale")
        c = _tokens(rng, 3 * size)
        filed = _Filed(PrefixCache, size)
        filed.publish(c, [x, y, z])
        filed.forget(y)
        filed.lookup([*c, 1], "mid-sequence")
        filed.forget(x)
        filed.lookup([*c, 1], "mid-sequence")
        filed.publish(c, [v, w, z])
        found = filed.lookup([*c, 1], "stale")
        for block in found:
            filed.forget(block)
            if block in as_list(filed.cache.lookup([*c, 1])):
                raise Wrong("stale", difference(f"{filed.told()}; lookup", "without it", found))


@PREFIX.part("the same contents in two blocks", points=1)
def _twice(rng: Random, PrefixCache: Any) -> None:
    for size in (4, rng.randint(2, 8)):
        filed = _Filed(PrefixCache, size)
        a, ids = _tokens(rng, 2 * size), rng.sample(range(60), 4)
        filed.publish(a, ids[:2])
        filed.publish(a, ids[2:])
        kept = filed.lookup([*a, 1], "wrong-block")
        for block in ids:
            if block not in kept:  # this copy is not published
                filed.forget(block)
                filed.lookup([*a, 1], "stale")
        for block in reversed(kept):
            filed.forget(block)
            filed.lookup([*a, 1], "stale")


@PREFIX.part("salts", points=1)
def _salts(rng: Random, PrefixCache: Any) -> None:
    size = rng.randint(2, 6)
    filed = _Filed(PrefixCache, size)
    a = _tokens(rng, 2 * size)
    filed.publish(a, [5, 9], "ann")
    filed.lookup([*a, 1], "salt-ignored", "bob")
    filed.lookup([*a, 1], "salt-ignored")
    filed.lookup([*a, 1], "wrong-block", "ann")
    filed.publish(a, [2, 4], "bob")
    filed.lookup([*a, 1], "wrong-block", "bob")
    filed.lookup([*a, 1], "wrong-block", "ann")


BEAMS = Exercise(
    "4.4",
    answers=("beam_blocks",),
    misconceptions={
        "logical": "The entries of all tables were counted, but a block that several beams share exists only once.",
        "prompt-only": "Only the prompt's full blocks were counted as shared. Beams with a common ancestor share "
        "the blocks it filled, and blocks held only by a dropped beam are free.",
        "partial-shared": "The prompt's partly filled block does not stay shared: each branch that writes into it "
        "gets its own copy.",
        "dead-beams": "Blocks of dropped beams are counted: only the ancestors of the live beams matter.",
        "tokens": "You counted tokens instead of blocks: each version of a block takes a whole block, however few "
        "tokens are its own.",
        **CHANGES,
        "other-number": "The number of blocks is wrong.",
    },
)

_Rule = Callable[[int, list[list[int]], int], int]


def _up(tokens: int, size: int) -> int:
    return -(-tokens // size)


def right_blocks(prompt: int, parents: list[list[int]], size: int) -> int:
    """The reference: for each block, the number of versions that the current beams hold."""
    return sum(versions(prompt, parents, size)) if parents else _up(prompt, size)


def _logical(prompt: int, parents: list[list[int]], size: int) -> int:
    width = len(parents[-1]) if parents else 1
    return width * _up(prompt + len(parents), size)


def _prompt_only(prompt: int, parents: list[list[int]], size: int) -> int:
    width, shared = (len(parents[-1]) if parents else 1), prompt // size
    return shared + width * (_up(prompt + len(parents), size) - shared)


def _partial_shared(prompt: int, parents: list[list[int]], size: int) -> int:
    total, shared = prompt + len(parents), _up(prompt, size)
    if not parents:
        return shared
    alive = living(parents)
    lasts = [min(total, (block + 1) * size) - 1 for block in range(shared, _up(total, size))]
    return shared + sum(len(alive[last - prompt]) for last in lasts)


def _dead_beams(prompt: int, parents: list[list[int]], size: int) -> int:
    """For each block, the beams that continued from it, whether or not they are still live."""
    total, blocks = prompt + len(parents), 0
    for block in range(_up(total, size)):
        step = (block + 1) * size - prompt  # the step after the block was full
        if step >= len(parents):
            blocks += len(parents[-1]) if parents else 1
        else:
            blocks += len(set(parents[step])) if step > 0 else 1
    return blocks


def _token_sum(prompt: int, parents: list[list[int]], size: int) -> int:
    tokens = prompt + (sum(map(len, living(parents))) if parents else 0)
    return _up(tokens, size)


_WRONG_COUNTS: dict[str, _Rule] = {
    "logical": _logical,
    "prompt-only": _prompt_only,
    "partial-shared": _partial_shared,
    "dead-beams": _dead_beams,
    "tokens": _token_sum,
}


def _compare(beam_blocks: Any, cases: list[tuple[int, list[list[int]], int]]) -> None:
    right = [right_blocks(*case) for case in cases]
    got = [beam_blocks(prompt, [list(row) for row in parents], size) for prompt, parents, size in cases]
    first = next((i for i, n in enumerate(right) if not is_whole(got[i]) or got[i] != n), None)
    if first is not None:
        explained = (key for key, rule in _WRONG_COUNTS.items() if got == [rule(*case) for case in cases])
        prompt, parents, size = cases[first]
        call = f"beam_blocks({prompt}, {show(parents)}, {size})"
        raise Wrong(next(explained, "other-number"), difference(call, right[first], got[first]))
    prompt, parents, size = cases[1]
    given = Arguments(parents=[list(row) for row in parents])
    beam_blocks(prompt, *given.passed("parents"), size)
    given.check_unchanged(f"beam_blocks({prompt}, {show(parents)}, {size})")


@BEAMS.part("beams that never fork again", points=3)
def _samples(rng: Random, beam_blocks: Any) -> None:
    straight = [list(range(3))]
    cases = [(6, [[0, 0, 0], *straight * steps], 4) for steps in (0, 1, 2, 5)]
    cases += [(8, [[0, 0, 0], *straight * steps], 4) for steps in (0, 3, 4)]
    cases += [(9, [], 4)]
    for _ in range(6):
        width, size = rng.randint(2, 5), rng.randint(2, 8)
        steps = rng.randint(0, 3 * size)
        cases.append((rng.randint(1, 4 * size), [[0] * width, *[list(range(width))] * steps], size))
    _compare(beam_blocks, cases)


@BEAMS.part("a tree", points=5)
def _tree(rng: Random, beam_blocks: Any) -> None:
    cases = [
        (6, [[0, 0], [0, 1], [0, 0]], 4),
        (6, [[0, 0, 0], [0, 1, 2], [0, 0, 1], [0, 1, 2], [0, 1, 2], [2, 2, 1], [0, 1, 2], [0, 1, 1]], 4),
        (4, [[0, 0], [0, 0], [1, 1], [1, 1], [0, 0]], 4),
        (5, [[0, 0, 0], *[[0, 1, 2]] * 4, [1, 1, 1], *[[0, 1, 2]] * 5, [2, 0, 0], [0, 1, 2]], 4),
    ]
    for _ in range(10):
        width, size = rng.randint(2, 5), rng.randint(2, 6)
        steps = rng.randint(size, 5 * size)
        rows = [[rng.randrange(width) for _ in range(width)] for _ in range(steps)]
        mixed = [row if rng.random() < 0.3 else list(range(width)) for row in rows]
        cases.append((rng.randint(1, 3 * size), [[0] * width, *mixed], size))
    _compare(beam_blocks, cases)
