"""Checks of chapter 6, where blocks change hands: preemption (6.2) and swapping (6.3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import AnswerRaised, show
from coursekit.checks.framework import Exercise, Wrong, as_list, difference, is_whole

SERVER = Exercise(
    "6.2",
    answers=("Server",),
    misconceptions={
        "loses-tokens": "A preempted request lost tokens that it had already generated: its user has read them.",
        "lost-request": "A request is neither running nor waiting: it would never end.",
        "livelock": "A request was preempted for a younger one: two that do this to each other never end. The latest "
        "gives way, also when it needs the block itself.",
        "wrong-victim": "It is the latest running request that gives way.",
        "too-many": "More requests were preempted than necessary: stop as soon as a block is free.",
        "leak": "Blocks were lost, or given twice: free blocks and held ones must add up to the pool.",
        "back-of-queue": "The order of `waiting` is not that of the requests' age: a preempted one is older than those "
        "who have not started yet.",
        "prompt-only": "A request that comes back needs the blocks of all its tokens, the generated ones included.",
        "half-admitted": "A request was admitted although the blocks of all its tokens were not free.",
        "left-waiting": "The blocks of all tokens of the oldest waiting request are free, and it was not admitted.",
        "no-room": "A running request has not as many blocks as its tokens need.",
        "other-state": "This is not how the server must look after the step.",
    },
)


class _Expected:
    """The right server, with the same names as the answer's; notes for whom the first victim of a step made room."""

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
    """What the answer's server looks like, as plain data."""

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
    """Drive both servers; the first step after which they differ is told."""
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
            lost = expected.preempted or "nobody"
            right = f"running {expected.running}, waiting {expected.waiting}, preempted {lost}"
            raise Wrong(
                key,
                f"{num_blocks} blocks of {size}; requests (prompt + new) {who}; after step {number}: expected {right}; "
                f"got {got.told()}.",
            )


def _explain(expected: _Expected, got: _Got, before: list[str], lengths: dict[str, int]) -> str:
    """The misconception that fits the first difference; "" if there is none."""
    alive = {*expected.running, *expected.waiting}
    known = {*got.running, *got.waiting}
    if any(len(got.tokens[name]) < lengths.get(name, 0) for name in known):
        return "loses-tokens"
    if alive - known and not any(name in known for name in set(lengths) - alive):
        return "lost-request"
    held = sum(got.blocks.values()) if all(map(is_whole, got.blocks.values())) else -1
    if not is_whole(got.num_free) or got.num_free + held != expected.num_blocks:
        return "leak"
    victims = [name for name in before if name in got.waiting]
    if set(victims) != set(expected.preempted):
        return _explain_victims(expected, victims, before)
    if got.waiting != expected.waiting and sorted(got.waiting) == sorted(expected.waiting):
        return "back-of-queue"
    started = [name for name in got.running if name not in before]
    for name in started:
        needed = expected.blocks[name] if name in expected.running else expected.needs(name)
        if got.blocks[name] == -(-expected.prompt[name] // expected.block_size) < needed:
            return "prompt-only"
        if got.blocks[name] < expected.blocks[name] or name not in expected.running:
            return "half-admitted"
    if [name for name in expected.running if name not in got.running]:
        return "left-waiting"
    if any(got.blocks[name] != expected.blocks[name] for name in got.running):
        return "no-room"
    same = got.running == expected.running and got.waiting == expected.waiting
    tokens = all(got.tokens[name] == expected.tokens[name] for name in known)
    return "" if same and tokens else "other-state"


def _explain_victims(expected: _Expected, victims: list[str], before: list[str]) -> str:
    wrong = [name for name in victims if name not in expected.preempted]
    if wrong and set(expected.preempted) < set(victims) and expected.preempted:
        return "too-many"
    if wrong and expected.needer:
        older = before.index(wrong[0]) < before.index(expected.needer)
        return "livelock" if older else "wrong-victim"
    return "too-many" if wrong else "no-room"


def _prompt(rng: Random, length: int) -> list[int]:
    return [rng.randrange(50) for _ in range(length)]


def _names(rng: Random) -> list[str]:
    """Names that do not sort by age."""
    return rng.sample("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 12)


@SERVER.part("who gives way", points=4)
def _who(rng: Random, Server: Any) -> None:
    a, b, c, *_ = _names(rng)
    # In step 6 the oldest needs a block; in the second case the youngest does, in step 2.
    _run(Server, 6, 4, [(name, _prompt(rng, 4), 12) for name in (a, b, c)], steps=6)
    jobs = [(a, _prompt(rng, 6), 8), (b, _prompt(rng, 6), 8), (c, _prompt(rng, 4), 8)]
    _run(Server, 5, 4, jobs, steps=2)


@SERVER.part("what it keeps, and how it comes back", points=3)
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


@SERVER.part("everybody is served", points=3)
def _everybody(rng: Random, Server: Any) -> None:
    for _ in range(6):
        size, names = rng.choice([1, 3, 4]), _names(rng)
        jobs = [
            (name, _prompt(rng, rng.randint(1, 12)), rng.randint(1, 12))
            for name in names[: rng.randint(3, 7)]
        ]
        most = max(-(-(len(prompt) + new) // size) for _, prompt, new in jobs)
        _run(Server, most + rng.randint(0, 4), size, jobs, steps=400)


SWAP = Exercise(
    "6.3",
    answers=("swap_out", "swap_in", "Memory"),
    misconceptions={
        "bad-ids": "The blocks that are returned must be taken from the free ones of the memory that they are in.",
        "no-op": "Nothing arrived: with a list as index, data[:, blocks] is a new array, and what is copied *into* it "
        "is lost. Assign to it instead, on the side that the blocks go to.",
        "freed-first": "The blocks were freed before they were copied: their next owner had written into them already.",
        "one-layer": "Only the first layer was copied: a block has keys and values in every layer.",
        "order": "The blocks are in another order: the first one returned must hold what the first one given held.",
        "wrong-copy": "What was moved is not what stood in the blocks.",
        "not-freed": "The blocks that were left must be free again.",
        "not-refused": "With too few free blocks on the other side, OutOfBlocks must come out of the function.",
        "half-done": "A swap that is refused must leave both memories as they were.",
    },
)
_HERE, _THERE = 33.0, 55.0  # what stands in blocks that nobody may read


class _Place:
    """A memory under test: some blocks hold a sequence, some are free, the rest are others'."""

    def __init__(self, Memory: Any, rng: Random, num_blocks: int, num_free: int, filled_with: float) -> None:
        ids = rng.sample(range(num_blocks), num_blocks)
        self.free_ids, self.others = sorted(ids[:num_free], reverse=rng.random() < 0.5), ids[num_free:]
        self.memory = Memory(3, num_blocks, 4, 2, list(self.free_ids))
        self.memory.write(list(range(num_blocks)), np.full((3, num_blocks, 4, 2), filled_with))

    def fill(self, rng: Random, n: int) -> tuple[list[int], Any]:
        """Blocks of a sequence, not in order, and what stands in them."""
        blocks = sorted(self.others[:n])
        while blocks == sorted(blocks):
            rng.shuffle(blocks)
        values = np.random.default_rng(rng.randrange(2**32)).normal(size=(3, n, 4, 2)).round(3)
        self.memory.write(list(blocks), values)
        return blocks, values

    def is_free(self, blocks: list[int]) -> bool:
        return set(blocks) <= set(as_list(self.memory.free_ids))

    def state(self) -> tuple[list[int], Any]:
        return sorted(as_list(self.memory.free_ids)), self.memory.data


def _moved(name: str, source: _Place, target: _Place, blocks: list[int], values: Any, move: Any) -> list[int]:
    """Let the answer move blocks, and look at both sides."""
    free_before, untouched = as_list(target.memory.free_ids), np.array(target.memory.data)
    device, host = (source, target) if name == "swap_out" else (target, source)
    got = as_list(move(device.memory, host.memory, list(blocks)))
    call = f"{name}(device, host, {blocks})"
    taken = set(free_before) - set(as_list(target.memory.free_ids))
    if len(got) != len(blocks) or not all(map(is_whole, got)) or set(got) != taken:
        raise Wrong("bad-ids", difference(f"{call}, free {show(free_before)}: blocks", sorted(taken), got))
    moved = np.array(target.memory.read(list(got)))
    if not np.array_equal(moved, values):
        place = tuple(int(i) for i in np.argwhere(moved != values)[0])
        where = f"{call}: layer {place[0]}, block {got[place[1]]} at {place[2:]}"
        key = _explain_copy(moved, values, untouched[:, got])
        raise Wrong(key, difference(where, float(values[place]), float(moved[place])))
    if not source.is_free(blocks):
        raise Wrong(
            "not-freed",
            f"{call}: {blocks} are not among the free ones, {show(as_list(source.memory.free_ids))}.",
        )
    if not np.array_equal(np.array(target.memory.data)[:, target.others], untouched[:, target.others]):
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
        _must_refuse(partial(move, device.memory, host.memory, list(blocks)), call)
        for (free, data), place, who in zip(before, (device, host), ("device", "host"), strict=True):
            free_now, data_now = place.state()
            if free_now != free or not np.array_equal(np.array(data_now), np.array(data)):
                raise Wrong(
                    "half-done", f"{call}: refused, but the {who}'s blocks or its free ones have changed."
                )


def _must_refuse(call: Callable[[], Any], text: str) -> None:
    try:
        got = call()
    except AnswerRaised as raised:
        if "OutOfBlocks" in raised.bases:
            return
        raise Wrong(
            "not-refused", f"{text}: expected OutOfBlocks, got {raised.name}: {raised.message}"
        ) from None
    raise Wrong("not-refused", f"{text}: expected OutOfBlocks, got {show(got)}.")
