"""Checks of chapter 10, where things are named: offsets into a large cache (10.2), keys of a prefix's blocks (10.4)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import Proxy, show
from coursekit.checks.framework import Exercise, Wrong, as_list, difference

OFFSETS = Exercise(
    "10.2",
    answers=("offsets",),
    misconceptions={
        "unchanged": "This is what the function as delivered returns: its products are still 32 bits wide, and wrap "
        "around at 2^31.",
        "cast-too-late": "The result is 64 bits wide, but it was multiplied in 32: widening comes after the damage. "
        "Widen what is multiplied.",
        "sign-hidden": "No offset is negative any more, and they are wrong all the same: a wrapped product has lost "
        "its upper bits, and nothing done to it afterwards brings them back.",
        "wall-moved": "Unsigned 32 bits move the wall from 2^31 to 2^32. A larger pool is as near as the next machine.",
        "rounded": "The offsets went through floating point, which is not exact at this size: whole numbers of 64 bits "
        "are.",
        "other-offset": "This is not where the token's keys begin.",
    },
)


def _wrap(numbers: np.ndarray) -> np.ndarray:
    return (numbers + 2**31) % 2**32 - 2**31


_WRONG_OFFSETS: dict[str, list[Callable[[np.ndarray], np.ndarray]]] = {
    "unchanged": [_wrap],
    "sign-hidden": [
        lambda exact: np.abs(_wrap(exact)),
        lambda exact: np.maximum(_wrap(exact), 0),
        lambda exact: np.minimum(exact, 2**31 - 1),
        lambda exact: exact % 2**31,
    ],
    "wall-moved": [lambda exact: exact % 2**32],
    "rounded": [lambda exact: exact.astype(np.float32).astype(np.float64).astype(np.int64)],
}


def _check_offsets(offsets: Any, blocks: list[int], n: int, size: int, kv_heads: int, head_dim: int) -> None:
    table = np.array(blocks, dtype=np.int32)
    token = np.arange(n, dtype=np.int64)
    exact = (table.astype(np.int64)[token // size] * size + token % size) * (kv_heads * head_dim)
    answer = offsets(table.copy(), n, size, kv_heads, head_dim)
    told = f"offsets of {n} tokens in blocks {show(blocks)} of {size}, {kv_heads} KV heads of {head_dim}"
    got = [int(x) if float(x) == int(x) else x for x in as_list(answer) if isinstance(x, int | float)]
    if got == exact.tolist():
        return
    if len(got) != n:
        raise Wrong("other-offset", f"{told}: expected {n} whole numbers, got {show(answer)}.")
    wrong = next(t for t in range(n) if got[t] != exact[t])
    found = next(
        (k for k, rules in _WRONG_OFFSETS.items() for rule in rules if got == rule(exact).tolist()),
        "other-offset",
    )
    wide = isinstance(answer, np.ndarray) and answer.dtype == np.int64
    key = "cast-too-late" if found == "unchanged" and wide else found
    raise Wrong(key, f"{told}: token {wrong}: expected {exact[wrong]:,}, got {got[wrong]:,}.")


@OFFSETS.part("a pool past 2^31 numbers", points=2)
def _past_31(rng: Random, offsets: Any) -> None:
    # Blocks of 16 tokens, 8 KV heads of 128: 16,384 numbers, so block 131,072 is the first past 2^31.
    _check_offsets(offsets, [3, 131_071, 131_072, 200_001], 61, 16, 8, 128)
    first = 2**31 // (32 * 4 * 64)
    blocks = [rng.randrange(first), *rng.sample(range(first, 2 * first - 1), 3)]
    _check_offsets(offsets, blocks, 32 * 4 - rng.randint(0, 31), 32, 4, 64)


@OFFSETS.part("a pool past 2^32 numbers", points=2)
def _past_32(rng: Random, offsets: Any) -> None:
    _check_offsets(offsets, [400_003, 5, 262_144], 41, 16, 8, 128)
    for size, kv_heads, head_dim in ((8, 8, 128), (16, 32, 128), (5, 3, 64)):
        per_block = size * kv_heads * head_dim
        top = min(2**36, (2**31 - 1) * kv_heads * head_dim) // per_block
        blocks = [rng.randrange(2**32 // per_block + 1, top) for _ in range(3)]
        _check_offsets(offsets, blocks, 3 * size - rng.randint(0, size - 1), size, kv_heads, head_dim)


KEYS = Exercise(
    "10.4",
    answers=("block_keys",),
    misconceptions={
        "unchanged": "This is what the function as delivered does: a block's key does not depend on the blocks before "
        "it, and its keys and values do.",
        "position": "The block's place is part of the key now, but not what stands before it: the same tokens in the "
        "same place after another beginning are another context.",
        "one-back": "The key reaches one block back. Everything before the block decides, back to the first token: "
        "chain the keys.",
        "salt-lost": "The salt no longer reaches the keys: two tenants would share blocks.",
        "partial": "A partial block got a key: it will still change.",
        "joined": "The digits of different tokens were joined without a separator: tokens 1, 11 and 11, 1 give "
        "one key.",
        "unequal": "Equal prompts got different keys: nothing would ever be found again.",
        "other-keys": "Wanted is one key for each full block, the same exactly where all tokens so far are the same.",
    },
)


def _keys(block_keys: Any, tokens: list[int], size: int, salt: str = "") -> list[Any]:
    answer = block_keys(list(tokens), size, salt)
    keys = [] if answer is None else as_list(answer)
    told = f"block_keys of {len(tokens)} tokens in blocks of {size}"
    if len(keys) == -(-len(tokens) // size) > len(tokens) // size:
        raise Wrong("partial", difference(told, f"{len(tokens) // size} keys", f"{len(keys)}"))
    if len(keys) != len(tokens) // size or any(isinstance(key, Proxy) or key is None for key in keys):
        raise Wrong("other-keys", f"{told}: expected {len(tokens) // size} keys, got {show(answer)}.")
    return keys


def _compare(block_keys: Any, a: list[int], b: list[int], size: int, key: str) -> None:
    """The keys of two prompts agree on the full blocks of their common prefix, and on no other."""
    keys = [_keys(block_keys, tokens, size) for tokens in (a, b)]
    again = _keys(block_keys, a, size)
    told = f"prompts {show(a)} and {show(b)}, blocks of {size}"
    if again != keys[0]:
        raise Wrong("unequal", f"{told}: the first one's keys, asked for twice, differ: {show(keys[0])}.")
    for i, (one, other) in enumerate(zip(*keys, strict=False)):
        if a[: (i + 1) * size] == b[: (i + 1) * size]:
            if one != other:
                raise Wrong("unequal", f"{told}: block {i}: expected the same key, got {show([one, other])}.")
        elif one == other:
            same = a[i * size : (i + 1) * size] == b[i * size : (i + 1) * size]
            detail = f"{told}: block {i}: expected different keys, got {show(one)} for both."
            raise Wrong(key if same else "other-keys", detail)
    if any(one in keys[0][:i] for i, one in enumerate(keys[0])):
        raise Wrong("other-keys", f"{told}: two blocks of the first have the same key: {show(keys[0])}.")


def _without_parent(block_keys: Any, block: list[int]) -> str:
    """What a key is made of, if not of the parent: the tokens alone, or the tokens and the place."""
    first, second = _keys(block_keys, block * 2, len(block))
    return "unchanged" if first == second else "position"


def _blocks(rng: Random, n: int, size: int) -> list[list[int]]:
    numbers = rng.sample(range(100, 49_000), n * size)
    return [numbers[i * size : (i + 1) * size] for i in range(n)]


@KEYS.part("the same tokens after another beginning", points=3)
def _other_parent(rng: Random, block_keys: Any) -> None:
    for size in (4, 1, rng.randint(2, 8)):
        a, b, c = _blocks(rng, 3, size)
        _compare(block_keys, a + c, b + c, size, _without_parent(block_keys, c))
        _compare(block_keys, a + a, c + a, size, _without_parent(block_keys, a))


def _separated(block_keys: Any) -> None:
    """Tokens whose digits read the same when they are joined."""
    for a, b in (([1, 11, 5, 6], [11, 1, 5, 6]), ([12, 3, 4, 5], [1, 23, 4, 5])):
        one, other = (_keys(block_keys, tokens, 2)[0] for tokens in (a, b))
        if one == other:
            detail = f"prompts {a} and {b}, blocks of 2: block 0: expected different keys, got {show(one)} for both."
            raise Wrong("joined", detail)


@KEYS.part("a beginning that lies further back; tenants, partial blocks", points=3)
def _further_back(rng: Random, block_keys: Any) -> None:
    _separated(block_keys)
    size = rng.randint(2, 8)
    a, b, c, d, e = _blocks(rng, 5, size)
    direct = [_keys(block_keys, x + c, size)[1] for x in (a, b)]
    key = _without_parent(block_keys, c) if direct[0] == direct[1] else "one-back"
    _compare(block_keys, a + c + d, b + c + d, size, key)
    _compare(block_keys, a + c + d + e, b + c + d + e, size, key)
    _compare(block_keys, a + c + d, a + c + e[:-1], size, "other-keys")
    mine, theirs = (_keys(block_keys, a + c, size, salt) for salt in ("tenant 1", "tenant 2"))
    shared = [i for i in range(2) if mine[i] == theirs[i]]
    if shared:
        told = f"prompt {show(a + c)}, salts 'tenant 1' and 'tenant 2'"
        detail = f"{told}: block {shared[0]}: expected different keys, got {show(mine[shared[0]])} for both."
        raise Wrong("salt-lost", detail)
    if len(_keys(block_keys, a + c[:-1], size)) != 1:
        raise Wrong("partial", f"{2 * size - 1} tokens in blocks of {size}: expected one key.")
