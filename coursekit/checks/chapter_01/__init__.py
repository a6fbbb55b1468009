"""Checks of chapter 1: bytes per token, the kinds of waste, a first-fit arena, how many requests fit."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from coursekit.checks.framework import (
    SHARED,
    Exercise,
    Wrong,
    as_list,
    difference,
    drawn,
    is_whole,
    keep_apart,
)

BYTES = Exercise(
    "1.1",
    answers=("kv_bytes_per_token",),
    misconceptions={
        "query-heads": "You counted the query heads, but only KV heads are cached: use num_kv_heads.",
        "keys-only": "Half of the bytes are missing: each token stores a key and a value.",
        "one-layer": "This is the size for one layer: each layer stores its own keys and values.",
        "bits": "This is in bits: divide by 8 to get bytes.",
        "rounded-number": "The size of an element was rounded to whole bytes, but 4 bits are half a byte.",
        "other-bytes": "The KV cache size per token is wrong.",
    },
)


def _bytes(c: dict[str, int]) -> float:
    return 2 * c["num_layers"] * c["num_kv_heads"] * c["head_dim"] * c["bits"] / 8


# The value that each misconception gives; it is named if it explains the first wrong value.
_WRONG_BYTES: dict[str, Callable[[dict[str, int]], float]] = {
    "query-heads": lambda c: _bytes(c) / c["num_kv_heads"] * c["num_heads"],
    "keys-only": lambda c: _bytes(c) / 2,
    "one-layer": lambda c: _bytes(c) / c["num_layers"],
    "bits": lambda c: _bytes(c) * 8,
    "rounded-number": lambda c: _bytes(c) / (c["bits"] / 8) * (c["bits"] // 8),
}
_ROUNDED_UP = 2  # an element of 4 bits stored in a whole byte


def _config(rng: Random, bits: int) -> dict[str, int]:
    kv_heads = rng.choice([2, 4, 6])
    heads = kv_heads * rng.choice(
        [3, 5, 7]
    )  # no factor of 2 or 8: so every misconception gives a different value
    return {"num_layers": rng.choice([24, 33, 40]), "num_heads": heads, "num_kv_heads": kv_heads,
            "head_dim": rng.choice([64, 96, 128]), "bits": bits}  # fmt: skip


def _check_bytes(config: dict[str, int], answer: Any) -> None:
    expected, got = _bytes(config), answer(dict(config))
    if is_whole(got) and got == expected:
        return
    call = f"kv_bytes_per_token({config})"
    explained = [
        key for key, rule in _WRONG_BYTES.items() if _is_number(got) and got == rule(config) != expected
    ]
    if got == 0 and not answer(config | {"bits": 8}):
        explained = []  # it is 0 with whole bytes, too: nothing was rounded
    if config["bits"] == 4 and _is_number(got) and got == expected * _ROUNDED_UP:
        explained = ["rounded-number"]
    raise Wrong([*explained, "other-bytes"][0], difference(call, int(expected), got))


@BYTES.part("caches of 8, 16 and 32 bits", points=3)
def _whole_bytes(rng: Random, kv_bytes_per_token: Any) -> None:
    llama = {"num_layers": 80, "num_heads": 64, "num_kv_heads": 8, "head_dim": 128, "bits": 16}
    odd = {"num_layers": 30, "num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "bits": 32}
    mha = {"num_layers": 40, "num_heads": 40, "num_kv_heads": 40, "head_dim": 128, "bits": 16}
    mqa = {"num_layers": 32, "num_heads": 71, "num_kv_heads": 1, "head_dim": 64, "bits": 16}
    for config in (odd, llama, mha, mqa, *(_config(rng, bits) for bits in (8, 16, 32))):
        _check_bytes(config, kv_bytes_per_token)


@BYTES.part("caches of 4 bits", points=1)
def _half_bytes(rng: Random, kv_bytes_per_token: Any) -> None:
    for _ in range(4):
        _check_bytes(_config(rng, bits=4), kv_bytes_per_token)


WASTE = Exercise(
    "1.2",
    answers=("split_waste",),
    misconceptions={
        "reserved-as-internal": "Slots whose token is still to come are reserved, not internal waste: they will be "
        "used, while internal waste lasts as long as the request.",
        "internal-as-reserved": "Slots beyond the request's last token are internal waste: nothing will ever be "
        "written there.",
        "counted-twice": "The three counts add up to more than the slots that are held: each slot counts once.",
        "beyond-the-slots": "You counted tokens that will go into later blocks: they use none of the slots held now.",
        "order": "The three counts are right but in the wrong order: return (used, reserved, internal).",
        "other-split": "The slots are split differently.",
    },
)


def _split(now: int, final: int, slots: int) -> list[int]:
    promised = min(final, slots)
    return [now, promised - now, slots - promised]


def _check_split(now: int, final: int, slots: int, answer: Any) -> None:
    expected, got = _split(now, final, slots), as_list(answer(now, final, slots))
    if len(got) == 3 and all(is_whole(value) for value in got) and got == expected:
        return
    raise Wrong(
        _explain_split(expected, got, final, slots),
        difference(f"split_waste({now}, {final}, {slots})", tuple(expected), tuple(got)),
    )


def _explain_split(expected: list[int], got: list[Any], final: int, slots: int) -> str:
    """Return the misconception that matches the first wrong answer."""
    if len(got) != 3 or not all(is_whole(value) for value in got):
        return "other-split"
    used, reserved, internal = expected
    if got == [used, 0, reserved + internal]:
        return "reserved-as-internal"
    if got == [used, reserved + internal, 0]:
        return "internal-as-reserved"
    if final > slots and got[1] == final - used:
        return "beyond-the-slots"
    if sum(got) > slots:
        return "counted-twice"
    return "order" if sorted(got) == sorted(expected) else "other-split"


@WASTE.part("a contiguous reservation", points=2)
def _reservation(rng: Random, split_waste: Any) -> None:
    _check_split(300, 850, 8192, split_waste)
    _check_split(850, 850, 8192, split_waste)
    for _ in range(5):
        now, coming, never = rng.sample(range(1, 900), 3)
        _check_split(now, now + coming, now + coming + never, split_waste)


@WASTE.part("blocks, with a partly filled last one", points=3)
def _blocks(rng: Random, split_waste: Any) -> None:
    _check_split(20, 30, 32, split_waste)  # the tail will be partly filled
    _check_split(300, 850, 304, split_waste)  # it will be filled, and more blocks follow
    _check_split(850, 850, 864, split_waste)  # it will never be filled
    _check_split(850, 850, 850, split_waste)
    for _ in range(8):
        size, now = rng.randint(2, 32), rng.randint(1, 400)
        _check_split(now, now + rng.randint(0, 3 * size), -(-now // size) * size, split_waste)


ARENA = Exercise(
    "1.3",
    answers=("Arena",),
    misconceptions={
        "never-joins": "Adjacent holes are not merged: in `free`, a hole that begins where another ends is the same "
        "hole.",
        "joins-one-side": "A freed piece is merged with the hole on one side only: check the one before and the one "
        "after.",
        "total-free": "The free slots of all holes were added up, but a piece must fit into one hole.",
        "not-first": "The piece was not placed in the first hole that is large enough.",
        "overlap": "The new piece covers slots that another piece holds or that do not exist.",
        "not-a-start": "allocate must return the piece's first slot, a whole number, or None if no hole is large "
        "enough.",
        "refused": "The request was refused although one hole is large enough.",
        "count": "`num_free` or `largest_hole` is wrong.",
        **SHARED,
    },
)


class _Model:
    """The reference arena for comparison, and the calls made so far."""

    def __init__(self, arena: Any, num_slots: int) -> None:
        self.arena, self.num_slots = arena, num_slots
        self.pieces: dict[int, int] = {}
        self.seams: set[int] = set()  # where a freed piece touches a hole
        self.calls = [f"Arena({num_slots})"]

    def holes(self) -> list[tuple[int, int]]:
        found, at = [], 0
        for start, size in [*sorted(self.pieces.items()), (self.num_slots, 0)]:
            found += [(at, start - at)] if start > at else []
            at = start + size
        return found

    def allocate(self, size: int) -> int | None:
        """Allocate in both arenas, compare, and return the start."""
        expected = next((start for start, room in self.holes() if room >= size), None)
        got = self.arena.allocate(size)
        self.calls.append(f"allocate({size})")
        if got is None and expected is None:
            return None
        if expected is not None and is_whole(got) and got == expected:
            self.pieces[expected] = size
            self.seams -= set(range(expected, expected + size + 1))
            return expected
        key = "overlap" if is_whole(got) else "not-a-start"
        if got is None and expected is not None:
            room = dict(self.holes())[expected]
            seams = self.seams & set(range(expected + 1, expected + room))
            key = "never-joins" if seams else "refused"
        elif is_whole(got) and expected is None:
            key = "total-free" if size <= self.num_slots - sum(self.pieces.values()) else "overlap"
        elif is_whole(got) and any(
            start <= got and got + size <= start + room for start, room in self.holes()
        ):
            key = "not-first"
        raise Wrong(key, difference(self.story(), expected, got))

    def free(self, start: int) -> None:
        self.arena.free(start)
        edges = {edge for hole, size in self.holes() for edge in (hole, hole + size)}
        self.seams |= edges & {start, start + self.pieces.pop(start)}
        self.calls.append(f"free({start})")

    def count(self) -> None:
        """Compare the reported free slots and largest hole."""
        sizes = [size for _, size in self.holes()]
        for name, expected in (("num_free", sum(sizes)), ("largest_hole", max(sizes, default=0))):
            got = getattr(self.arena, name)()
            if not (is_whole(got) and got == expected):
                raise Wrong("count", difference(f"{self.story()}, {name}()", expected, got))

    def story(self) -> str:
        """Return the calls that led here, or only the last ones if there were many."""
        dots = ["…"] if len(self.calls) > 12 else []
        return ", ".join([self.calls[0], *dots, *self.calls[1:][-11:]])


@ARENA.part("contiguous pieces, in the first hole that is large enough", points=2)
def _first_fit(rng: Random, Arena: Any) -> None:
    model = _Model(Arena(100), 100)
    starts = [model.allocate(size) for size in (30, 20, 25, 25)]
    for start in (0, 50):  # holes of 30 and of 25; the tighter fit is second
        model.free(starts[starts.index(start)] or 0)
    model.allocate(22)
    model.allocate(25)
    _random_walk(rng, Arena, joins=False)
    keep_apart(lambda: _take_turns([_Model(Arena(40), 40)]), lambda: _take_turns(_two(Arena)))


def _two(Arena: Any) -> list[_Model]:
    return [_Model(Arena(size), size) for size in (60, 40)]


def _take_turns(models: list[_Model]) -> None:
    for size in (12, 7, 5):
        for model in models:
            model.allocate(size)
    for model in models:
        model.free(12)
        model.count()
        model.allocate(6)


@ARENA.part("freed pieces are merged with adjacent holes", points=3)
def _joins(rng: Random, Arena: Any) -> None:
    outcomes = {}
    for order in ([0, 25], [25, 0]):  # the second piece freed touches the hole before or after it
        model = _Model(Arena(50), 50)
        for _ in range(2):
            model.allocate(25)
        arena = model.arena
        for start in order:
            arena.free(start)
        call = f"Arena(50), allocate(25), allocate(25), free({order[0]}), free({order[1]}), allocate(50)"
        outcomes[call] = arena.allocate(50)
    wrong = [call for call, got in outcomes.items() if not is_whole(got) or got != 0]
    if wrong:
        refused = [call for call in wrong if outcomes[call] is None]
        key = "overlap" if is_whole(outcomes[wrong[0]]) else "not-a-start"
        if refused:
            key = "never-joins" if len(refused) == 2 else "joins-one-side"
        raise Wrong(key, difference(wrong[0], 0, outcomes[wrong[0]]))
    _random_walk(rng, Arena, joins=True)


@ARENA.part("enough free slots, but not in one hole", points=2)
def _does_not_fit(rng: Random, Arena: Any) -> None:
    model = _Model(Arena(1000), 1000)
    model.count()
    sizes = [rng.randint(80, 110) for _ in range(9)]
    starts = [model.allocate(size) for size in sizes]
    model.allocate(1000 - sum(sizes))
    model.count()
    for start in starts[::2]:  # no two of them are adjacent
        model.free(start or 0)
    model.count()
    model.allocate(120)  # larger than any hole, far smaller than their sum
    model.count()
    for size in sizes[::2]:  # each of these still fits
        model.allocate(size)


def _random_walk(rng: Random, Arena: Any, joins: bool) -> None:
    """Allocate and free at random. Without `joins` no piece is freed next to a hole, so merging is not needed."""
    model = _Model(Arena(200), 200)
    for _ in range(60):
        if rng.random() < 0.55:
            model.allocate(rng.randint(1, 40))
        else:
            ends = {edge for start, size in model.holes() for edge in (start, start + size)}
            able = [s for s, n in sorted(model.pieces.items()) if joins or not {s, s + n} & ends]
            if able:
                model.free(rng.choice(able))


FIT = Exercise(
    "1.4",
    answers=("requests_that_fit",),
    misconceptions={
        "floor-blocks": "The number of blocks was rounded down: the last tokens need a block, too.",
        "extra-block": "num_tokens // block_size + 1 is one block too many for a multiple of block_size: round up.",
        "no-blocks": "Requests take whole blocks, not single tokens: round up to a multiple of block_size.",
        "gib": "GB and GiB are mixed up: 1 GB is 10^9 bytes, 1 GiB is 2^30 bytes.",
        "weights-forgotten": "The weights are in the same memory: subtract them.",
        "fraction-of-rest": "The fraction was taken of what the weights leave; take it of the whole memory, then "
        "subtract the weights.",
        "reserves-tokens": "With reservations, a request holds max_tokens slots, however few tokens it has.",
        "one-too-many": "Only whole requests fit: round down.",
        "swapped": "The two numbers are in the wrong order: return reservations first, then blocks.",
        "other-fit": "The number of requests that fit is wrong.",
    },
)
_Machine = dict[str, Any]


def _fit(m: _Machine, *, budget: float | None = None, per_request: int | None = None) -> tuple[float, float]:
    """Number of requests before rounding down: with reservations, with blocks."""
    if budget is None:
        budget = (m["fraction"] * m["memory_gb"] - m["weights_gb"]) * 1e9
    slots = -(-m["num_tokens"] // m["block_size"]) * m["block_size"] if per_request is None else per_request
    return budget / (m["max_tokens"] * m["bytes_per_token"]), budget / (slots * m["bytes_per_token"])


def _wrong_fits(m: _Machine) -> dict[str, tuple[float, float]]:
    """The answer that each misconception gives, in the order in which they are named."""
    right = _fit(m)
    share, floor = m["fraction"] * m["memory_gb"], m["num_tokens"] // m["block_size"] * m["block_size"]
    return {
        "swapped": (right[1], right[0]),
        "gib": _fit(m, budget=(share - m["weights_gb"]) * 2**30),
        "weights-forgotten": _fit(m, budget=share * 1e9),
        "fraction-of-rest": _fit(m, budget=m["fraction"] * (m["memory_gb"] - m["weights_gb"]) * 1e9),
        "floor-blocks": _fit(m, per_request=floor),
        "extra-block": _fit(m, per_request=floor + m["block_size"]),
        "no-blocks": _fit(m, per_request=m["num_tokens"]),
        "reserves-tokens": (_fit(m, per_request=m["num_tokens"])[1], right[1]),
        "one-too-many": (right[0] + 1, right[1] + 1),
    }


def _machine(rng: Random, exact: bool = False) -> _Machine:
    """A machine on which every misconception gives another answer; with `exact`, requests fill their last block."""
    machine: _Machine = drawn(lambda: _candidate(rng, exact))
    return machine


def _candidate(rng: Random, exact: bool) -> _Machine | None:
    block_size = rng.choice([8, 16, 32, 64])
    m: _Machine = {
        "memory_gb": rng.choice([160, 192, 320, 640]),
        "fraction": rng.choice([0.8, 0.9, 0.95]),
        "weights_gb": rng.randint(20, 60),
        "bytes_per_token": rng.choice([131_072, 163_840, 196_608]),
        "max_tokens": rng.choice([4096, 5000, 8192]),
        "num_tokens": block_size * rng.randint(3, 9) + (0 if exact else rng.randint(1, block_size - 1)),
        "block_size": block_size,
    }
    right, wrong = _fit(m), _wrong_fits(m)
    pairs = {key: [int(value) for value in wrong[key]] for key in wrong}
    both = ("gib", "weights-forgotten", "fraction-of-rest", "one-too-many", "swapped")
    paged = ("extra-block",) if exact else ("floor-blocks", "no-blocks")
    far = all(0.02 < value % 1 < 0.98 for value in right)  # no quotient is close to a whole number
    shows = all(pairs[key][i] != int(right[i]) for key in both for i in (0, 1)) and all(
        pairs[key][1] != int(right[1]) for key in paged
    )
    unlike = len({pairs[k][1] for k in (*both[:3], *paged, "one-too-many")}) == 4 + len(paged)
    unlike = unlike and len({pairs[k][0] for k in (*both[:3], "one-too-many")}) == 4
    return m if far and shows and unlike else None


def _check_fit(m: _Machine, answer: Any, which: int) -> None:
    right = [int(value) for value in _fit(m)]
    got = as_list(answer(*m.values()))
    if len(got) == 2 and is_whole(got[which]) and got[which] == right[which]:
        return
    key = "other-fit"
    if len(got) == 2 and all(_is_number(value) for value in got):
        for name, wrong in _wrong_fits(m).items():
            if wrong[which] == _fit(m)[which]:
                continue  # it does not change this number
            # Rounded down, or not rounded at all.
            if got[which] == int(wrong[which]) or abs(got[which] - wrong[which]) < 1e-6 * wrong[which]:
                key = name
                break
        else:
            if abs(got[which] - _fit(m)[which]) < 1e-6 * right[which]:
                key = "one-too-many"
    arguments = ", ".join(f"{name}={value}" for name, value in m.items())
    part = ("reservations", "blocks")[which]
    shown = got[which] if len(got) == 2 else got
    raise Wrong(key, difference(f"requests_that_fit({arguments}), with {part}", right[which], shown))


@FIT.part("with reservations", points=2)
def _with_reservations(rng: Random, requests_that_fit: Any) -> None:
    for _ in range(5):
        _check_fit(_machine(rng), requests_that_fit, 0)


@FIT.part("with blocks", points=2)
def _with_blocks(rng: Random, requests_that_fit: Any) -> None:
    for _ in range(5):
        _check_fit(_machine(rng), requests_that_fit, 1)
    _check_fit(_machine(rng, exact=True), requests_that_fit, 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
