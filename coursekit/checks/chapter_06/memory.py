"""Checks of chapter 6 for blocks that change owners: preemption (6.2) and swapping (6.3)."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import show
from coursekit.checks.chapter_02.memory import must_raise
from coursekit.checks.framework import Exercise, Wrong, as_list, difference, is_whole

SERVER = Exercise(
    "6.2",
    answers=("Server",),
    misconceptions={
        "loses-tokens": "A preempted request lost generated tokens, but they were already sent to its user.",
        "lost-request": "A request that is not finished is neither running nor waiting.",
        "overtaken": "A younger request was admitted while an older one waits: the oldest waiting request comes first.",
        "livelock": "A request was preempted for a younger one: two requests can preempt each other forever. "
        "Preempt the latest running request, even if it is the one that needs the block.",
        "wrong-victim": "The wrong request was preempted: preempt the latest running request.",
        "too-many": "More requests were preempted than necessary: stop as soon as a block is free.",
        "leak": "Blocks were lost or handed out twice: free and held blocks must add up to the pool.",
        "back-of-queue": "`waiting` is not in order of age: a preempted request is older than the requests that "
        "have not started yet.",
        "prompt-only": "A resumed request needs blocks for all its tokens, including the generated ones.",
        "half-admitted": "A request was admitted although there were not enough free blocks for all its tokens.",
        "left-waiting": "The oldest waiting request was not admitted although there are free blocks for all its "
        "tokens.",
        "no-room": "A running request has fewer blocks than its tokens need.",
        "early-block": "A running request has more blocks than its tokens need: it gets one when a token needs it.",
        "finished-without-room": "A request got its last token although it had no block for it: make room first.",
        "preempt-alone": "preempt does not do all of its work: when it returns, the request is in `waiting`, no longer "
        "in `running`, and its blocks are free.",
        "other-state": "The server's state after the step is wrong.",
    },
)


class _Expected:
    """The reference server, with the answer's names. It records which request each first victim made room for."""

    def __init__(self, num_blocks: int, block_size: int, jobs: list[tuple[str, list[int], int]]) -> None:
        self.num_blocks = self.num_free = num_blocks
        self.block_size = block_size
        self.tokens = {name: list(prompt) for name, prompt, _ in jobs}
        self.end = {name: len(prompt) + new for name, prompt, new in jobs}
        self.prompt = {name: len(prompt) for name, prompt, _ in jobs}
        self.blocks = dict.fromkeys(self.tokens, 0)
        self.waiting, self.running = list(self.tokens), list[str]()
        self.preempted: list[str] = []
        self.needer = ""

    def needs(self, name: str) -> int:
        return -(-len(self.tokens[name]) // self.block_size)

    def step(self) -> None:
        self.preempted, self.needer = [], ""
        served = []
        for name in list(self.running):
            if name in self.running and self._make_room(name):
                served.append(name)
        while not self.preempted and self.waiting and self.needs(self.waiting[0]) <= self.num_free:
            name = self.waiting.pop(0)
            self._take(name, self.needs(name))
            self.running.append(name)
            served.append(name)
        for name in served:
            tokens = self.tokens[name]
            tokens.append((sum(tokens) * 7 + len(tokens)) % 50)
            if len(tokens) == self.end[name]:
                self.running.remove(name)
                self._take(name, -self.blocks[name])

    def _make_room(self, name: str) -> bool:
        while self.blocks[name] < self.needs(name):
            if self.num_free:
                self._take(name, 1)
                continue
            self.needer = self.needer or name
            victim = self.running.pop()
            self.preempted.append(victim)
            self._take(victim, -self.blocks[victim])
            self.waiting.insert(0, victim)
            if victim == name:
                return False
        return True

    def _take(self, name: str, blocks: int) -> None:
        self.num_free -= blocks
        self.blocks[name] += blocks


class _Got:
    """The state of the answer's server, as plain data."""

    def __init__(self, server: Any) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.blocks: dict[str, Any] = {}
        self.running, self.waiting = self._read(server.running), self._read(server.waiting)
        self.num_free = server.num_free

    def _read(self, requests: Any) -> list[str]:
        names = []
        for request in as_list(requests):
            names.append(request.name)
            self.tokens[request.name], self.blocks[request.name] = as_list(request.tokens), request.blocks
        return names

    def told(self) -> str:
        blocks = ", ".join(f"{name} {self.blocks[name]}" for name in self.running)
        return f"running {self.running} (blocks: {blocks or 'none'}), waiting {self.waiting}, {self.num_free} free"


def _run(Server: Any, num_blocks: int, size: int, jobs: list[tuple[str, list[int], int]], steps: int) -> None:
    """Run both servers and report the first step after which they differ."""
    server, expected = Server(num_blocks, size), _Expected(num_blocks, size, jobs)
    for name, prompt, new in jobs:
        server.add(name, list(prompt), new)
    who = ", ".join(f"{name} {len(prompt)} + {new}" for name, prompt, new in jobs)
    for number in range(1, steps + 1):
        if not expected.running and not expected.waiting:
            return
        before = list(expected.running)
        lengths = {name: len(tokens) for name, tokens in expected.tokens.items()}
        expected.step()
        server.step()
        got = _Got(server)
        if key := _explain(expected, got, before, lengths):
            lost = expected.preempted or "none"
            right = f"running {expected.running}, waiting {expected.waiting}, preempted {lost}"
            raise Wrong(
                key,
                f"{num_blocks} blocks of {size}; requests (prompt + new) {who}; after step {number}: expected {right}; "
                f"got {got.told()}.",
            )


def _explain(expected: _Expected, got: _Got, before: list[str], lengths: dict[str, int]) -> str:
    """Return the misconception that matches the first difference, or "" if there is none."""
    alive = {*expected.running, *expected.waiting}
    known = {*got.running, *got.waiting}
    if any(len(got.tokens[name]) < lengths.get(name, 0) for name in known):
        return "loses-tokens"
    if gone := alive - known:
        last = all(lengths[name] + 1 == expected.end[name] for name in gone)
        preempted = [name for name in before if name in got.waiting]
        unmet = last and not preempted and gone <= set(expected.preempted)
        return "finished-without-room" if unmet else "lost-request"
    held = sum(got.blocks.values()) if all(map(is_whole, got.blocks.values())) else -1
    if not is_whole(got.num_free) or got.num_free + held != expected.num_blocks:
        return "leak"
    short = [name for name in got.running if got.blocks[name] < -(-lengths[name] // expected.block_size)]
    victims = [name for name in before if name in got.waiting]
    if set(victims) != set(expected.preempted):
        return _explain_victims(expected, victims, before, bool(short))
    if got.waiting != expected.waiting and sorted(got.waiting) == sorted(expected.waiting):
        return "back-of-queue"
    started = [name for name in got.running if name not in before]
    if got.waiting and any(_age(expected, name) > _age(expected, got.waiting[0]) for name in started):
        return "overtaken"
    for name in started:
        needed = expected.blocks[name] if name in expected.running else expected.needs(name)
        if got.blocks[name] == -(-expected.prompt[name] // expected.block_size) < needed:
            return "prompt-only"
        if got.blocks[name] < expected.blocks[name] or name not in expected.running:
            return "half-admitted"
    if [name for name in expected.running if name not in got.running]:
        return "left-waiting"
    if any(got.blocks[name] != expected.blocks[name] for name in got.running):
        return "no-room" if short else "early-block"
    same = got.running == expected.running and got.waiting == expected.waiting
    tokens = all(got.tokens[name] == expected.tokens[name] for name in known)
    return "" if same and tokens else "other-state"


def _age(expected: _Expected, name: str) -> int:
    """A request's place in the order of arrival."""
    return list(expected.tokens).index(name)


def _explain_victims(expected: _Expected, victims: list[str], before: list[str], short: bool) -> str:
    wrong = [name for name in victims if name not in expected.preempted]
    if wrong and set(expected.preempted) < set(victims) and expected.preempted:
        return "too-many"
    if wrong and expected.needer:
        older = before.index(wrong[0]) < before.index(expected.needer)
        return "livelock" if older else "wrong-victim"
    return "too-many" if wrong else "no-room" if short else "other-state"


def _prompt(rng: Random, length: int) -> list[int]:
    return [rng.randrange(50) for _ in range(length)]


def _names(rng: Random) -> list[str]:
    """Request ids whose sort order is not their order of arrival."""
    return rng.sample("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 12)


@SERVER.part("which request is preempted", points=3)
def _who(rng: Random, Server: Any) -> None:
    a, b, c, *_ = _names(rng)
    _run(Server, 20, 4, [(name, _prompt(rng, 4), 8) for name in (a, b, c)], steps=6)  # room for all
    # In step 6 the oldest request needs a block; in the second case the youngest does, in step 2.
    _run(Server, 6, 4, [(name, _prompt(rng, 4), 12) for name in (a, b, c)], steps=6)
    jobs = [(a, _prompt(rng, 6), 8), (b, _prompt(rng, 6), 8), (c, _prompt(rng, 4), 8)]
    _run(Server, 5, 4, jobs, steps=2)
    # In step 2 the youngest request needs a block for its last token.
    _run(Server, 2, 4, [(a, _prompt(rng, 3), 4), (b, _prompt(rng, 4), 2)], steps=2)


@SERVER.part("what a preempted request keeps, and how it resumes", points=2)
def _back(rng: Random, Server: Any) -> None:
    a, b, c, d, *_ = _names(rng)
    _run(Server, 6, 4, [(name, _prompt(rng, 4), 12) for name in (a, b, c)], steps=40)
    jobs = [
        (a, _prompt(rng, 6), 8),
        (b, _prompt(rng, 6), 8),
        (c, _prompt(rng, 4), 8),
        (d, _prompt(rng, 4), 2),
    ]
    _run(Server, 5, 4, jobs, steps=40)


@SERVER.part("every request finishes", points=1)
def _everybody(rng: Random, Server: Any) -> None:
    for _ in range(6):
        size, names = rng.choice([1, 3, 4]), _names(rng)
        jobs = [
            (name, _prompt(rng, rng.randint(1, 12)), rng.randint(1, 12))
            for name in names[: rng.randint(3, 7)]
        ]
        most = max(-(-(len(prompt) + new) // size) for _, prompt, new in jobs)
        _run(Server, most + rng.randint(0, 4), size, jobs, steps=400)


@SERVER.part("preempt, called alone", points=2)
def _preempt(rng: Random, Server: Any) -> None:
    a, b, c, *_ = _names(rng)
    server = Server(6, 4)
    for name in (a, b, c):
        server.add(name, _prompt(rng, 3), 5)
    server.step()
    server.preempt(list(server.running)[-1])
    got = _Got(server)
    state = (got.running, got.waiting, got.num_free, got.blocks.get(c))
    expected = ([a, b], [c], 4, 0)
    if state != expected:
        call = f"6 blocks of 4; running {[a, b, c]}, a block each; preempt({c}): (running, waiting, num_free, blocks)"
        raise Wrong("preempt-alone", difference(call, expected, state))


@SERVER.part("admit, called alone", points=2)
def _admit(rng: Random, Server: Any) -> None:
    a, b, c, d, *_ = _names(rng)
    for num_blocks, lengths, fit in ((5, (6, 5, 4, 1), 3), (3, (6, 5, 4, 1), 1), (1, (5, 1, 1, 1), 0)):
        server = Server(num_blocks, 4)
        for name, length in zip((a, b, c, d), lengths, strict=True):
            server.add(name, _prompt(rng, length), 5)
        server.admit()
        got = _Got(server)
        names = [a, b, c, d]
        blocks = {
            name: -(-length // 4) * (i < fit)
            for i, (name, length) in enumerate(zip(names, lengths, strict=True))
        }
        state = (got.running, got.waiting, got.blocks, got.num_free)
        expected = (names[:fit], names[fit:], blocks, num_blocks - sum(blocks.values()))
        if state != expected:
            key = "other-state"
            if got.waiting and any(
                names.index(n) > names.index(got.waiting[0]) for n in got.running if n in names
            ):
                key = "overtaken"
            elif len(got.running) != fit:
                key = "half-admitted" if len(got.running) > fit else "left-waiting"
            elif state[:3] == expected[:3] or not is_whole(got.num_free):
                key = "leak"
            who = ", ".join(f"{name} {length}" for name, length in zip(names, lengths, strict=True))
            call = f"{num_blocks} blocks of 4; waiting (tokens) {who}; admit(): (running, waiting, blocks, num_free)"
            raise Wrong(key, difference(call, expected, state))


SWAP = Exercise(
    "6.3",
    answers=("swap_out", "swap_in", "Memory"),
    helpers=("Memory",),
    misconceptions={
        "bad-ids": "The returned blocks must come from the free blocks of the memory that they are in.",
        "no-op": "Nothing was copied. With a list as index, data[:, blocks] is a new array, and data copied *into* "
        "it is lost: assign to data[:, blocks] on the destination side.",
        "freed-first": "The blocks were freed before they were copied, and their next owner had already written "
        "into them.",
        "one-layer": "Only the first layer was copied: a block has keys and values in every layer.",
        "order": "The blocks are in the wrong order: the first returned block must hold the contents of the first "
        "given one.",
        "wrong-copy": "The contents were not copied correctly.",
        "not-freed": "The source blocks must be free again after the copy.",
        "not-refused": "With too few free blocks on the other side, the function must let OutOfBlocks propagate.",
        "half-done": "A rejected swap must leave both memories unchanged.",
    },
)
_HERE, _THERE = 33.0, 55.0  # contents of blocks that must not be read


class _Place:
    """A memory under test: some blocks hold a sequence, some are free, the others belong to other sequences."""

    def __init__(self, Memory: Any, rng: Random, num_blocks: int, num_free: int, filled_with: float) -> None:
        ids = rng.sample(range(num_blocks), num_blocks)
        self.free_ids, self.others = sorted(ids[:num_free], reverse=rng.random() < 0.5), ids[num_free:]
        self.memory = Memory(3, num_blocks, 4, 2, list(self.free_ids))
        self.memory.write(list(range(num_blocks)), np.full((3, num_blocks, 4, 2), filled_with))

    def fill(self, rng: Random, n: int) -> tuple[list[int], Any]:
        """Blocks of a sequence in shuffled order, and their contents."""
        ascending = sorted(self.others[:n])
        blocks = rng.sample(ascending, n)
        if blocks == ascending:
            blocks.reverse()
        values = np.random.default_rng(rng.randrange(2**32)).normal(size=(3, n, 4, 2)).round(3)
        self.memory.write(list(blocks), values)
        return blocks, values

    def free_now(self) -> list[int]:
        return as_list(self.memory.free_ids)

    def data(self) -> np.ndarray:
        """The whole memory, as the answer left it. What its methods say is not asked."""
        return np.array(self.memory.data, float)

    def state(self) -> tuple[list[int], np.ndarray]:
        return sorted(self.free_now()), self.data()


def _moved(name: str, source: _Place, target: _Place, blocks: list[int], values: Any, move: Any) -> list[int]:
    """Let the answer move blocks, and check both sides."""
    free_before, untouched = target.free_now(), target.data()
    device, host = (source, target) if name == "swap_out" else (target, source)
    got = as_list(move(device.memory, host.memory, list(blocks)))
    call = f"{name}(device, host, {blocks})"
    free_after, after = target.free_now(), target.data()
    taken = [block for block in free_before if block not in free_after]
    if not all(map(is_whole, got)) or sorted(got) != sorted(taken) or len(got) != len(blocks):
        raise Wrong("bad-ids", difference(f"{call}, free {show(free_before)}: blocks", sorted(taken), got))
    moved = after[:, got]
    if not np.array_equal(moved, values):
        place = tuple(int(i) for i in np.argwhere(moved != values)[0])
        where = f"{call}: layer {place[0]}, block {got[place[1]]} at {place[2:]}"
        key = _explain_copy(moved, values, untouched[:, got])
        raise Wrong(key, difference(where, float(values[place]), float(moved[place])))
    source_free = source.free_now()
    if any(block not in source_free for block in blocks):
        raise Wrong("not-freed", f"{call}: {blocks} are not among the free ones, {show(source_free)}.")
    if not np.array_equal(after[:, target.others], untouched[:, target.others]):
        raise Wrong("wrong-copy", f"{call}: blocks that belong to others were changed.")
    return [int(block) for block in got]


def _explain_copy(moved: Any, values: Any, untouched: Any) -> str:
    if np.array_equal(moved, untouched):
        return "no-op"
    if (moved == -99).all():
        return "freed-first"
    if np.array_equal(moved[0], values[0]):
        return "one-layer"
    of_moved, of_values = (
        sorted(array[:, i].tolist() for i in range(array.shape[1])) for array in (moved, values)
    )
    return "order" if of_moved == of_values else "wrong-copy"


@SWAP.part("out", points=3)
def _out(rng: Random, swap_out: Any, swap_in: Any, Memory: Any) -> None:
    for n in (3, rng.randint(2, 5)):
        device, host = _Place(Memory, rng, 16, 4, _HERE), _Place(Memory, rng, 14, 7, _THERE)
        blocks, values = device.fill(rng, n)
        _moved("swap_out", device, host, blocks, values, swap_out)


@SWAP.part("in again", points=3)
def _in(rng: Random, swap_out: Any, swap_in: Any, Memory: Any) -> None:
    for n in (3, rng.randint(2, 5)):
        device, host = _Place(Memory, rng, 16, 8, _HERE), _Place(Memory, rng, 14, 4, _THERE)
        blocks, values = host.fill(rng, n)
        _moved("swap_in", host, device, blocks, values, swap_in)


@SWAP.part("no room on the other side", points=2)
def _no_room(rng: Random, swap_out: Any, swap_in: Any, Memory: Any) -> None:
    for name, move in (("swap_out", swap_out), ("swap_in", swap_in)):
        device, host = _Place(Memory, rng, 16, 3, _HERE), _Place(Memory, rng, 14, 3, _THERE)
        source = device if name == "swap_out" else host
        blocks, _ = source.fill(rng, 4)
        before = (device.state(), host.state())
        call = f"{name}(device, host, {blocks}) with 3 free blocks on the other side"
        must_raise(
            partial(move, device.memory, host.memory, list(blocks)), "OutOfBlocks", "not-refused", call
        )
        for (free, data), place, who in zip(before, (device, host), ("device", "host"), strict=True):
            free_now, data_now = place.state()
            if free_now != free or not np.array_equal(data_now, data):
                raise Wrong(
                    "half-done", f"{call}: rejected, but the {who}'s blocks or its free ones have changed."
                )
