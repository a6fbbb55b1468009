"""Checks of chapter 6: one step (6.1) and break-even (6.4); `memory.py` has preemption and swapping."""

from __future__ import annotations

from random import Random
from typing import Any

from coursekit.checks.chapter_06 import memory  # noqa: F401  registers its exercises
from coursekit.checks.framework import Exercise, Wrong, as_list, as_number, is_whole, show_got

STEP = Exercise(
    "6.1",
    answers=("schedule",),
    misconceptions={
        "no-batch": "The batch must be a list of pairs (request id, number of tokens).",
        "past-budget": "The batch has more tokens than the budget allows.",
        "decode-waits": "A decode is missing or comes after a prefill: decodes must not wait for a prompt.",
        "not-chunked": "A prompt longer than the remaining budget was left out: compute a part of it.",
        "overtaken": "A younger request was started while an older one waits: the request at the head of the queue "
        "starves.",
        "too-many-seqs": "More than max_seqs requests are running.",
        "prefill-left-out": "A prefill in progress is missing: it gets what the decodes and the older prefills "
        "leave of the budget.",
        "part-admitted": "A request was admitted with room for only a part of its tokens: the blocks of *all* its "
        "tokens must be free, even if this step computes fewer.",
        "no-growth": "A request was admitted without a free block for growth.",
        "blocks-forgotten": "The same blocks were used twice: blocks taken by a decode or by earlier admissions are "
        "not free.",
        "left-waiting": "A request that may start was left waiting: the blocks of its tokens and one more are enough.",
        "other-batch": "The batch of this step is wrong.",
    },
)
_Request = dict[str, Any]
_Case = tuple[list[_Request], list[_Request], int, int, int, int]
_Batch = list[tuple[str, int]]


def _blocks(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def _request(name: str, tokens: int, computed: int, block_size: int) -> _Request:
    """A running request. A decode's blocks have room for its computed tokens, a prefill's for all of its tokens."""
    placed = computed if tokens - computed == 1 else tokens
    return {"id": name, "tokens": tokens, "computed": computed, "blocks": _blocks(placed, block_size)}


def _waiting(name: str, tokens: int) -> _Request:
    return {"id": name, "tokens": tokens, "computed": 0, "blocks": 0}


def _decodes(case: _Case) -> list[_Request]:
    return [request for request in case[0] if request["tokens"] - request["computed"] == 1]


def _free_after_decodes(case: _Case) -> int:
    size = case[4]
    return case[2] - sum(_blocks(r["tokens"], size) - r["blocks"] for r in _decodes(case))


def _schedule(case: _Case) -> _Batch:
    """The right batch."""
    running, waiting, _, budget, size, max_seqs = case
    batch = [(request["id"], 1) for request in _decodes(case)]
    free, places = _free_after_decodes(case), max_seqs - len(running)
    budget -= len(batch)
    for request in running:
        left = min(request["tokens"] - request["computed"], budget)
        if request["tokens"] - request["computed"] > 1 and left:
            batch.append((request["id"], left))
            budget -= left
    for request in waiting:
        needed = _blocks(request["tokens"], size)
        if not budget or not places or needed + 1 > free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        free, places = free - needed, places - 1
    return batch


def _pairs(value: Any) -> _Batch | None:
    """The answer's batch as a list of pairs, or None if it is not one."""
    pairs = [as_list(pair) for pair in as_list(value)]
    if not all(len(pair) == 2 and isinstance(pair[0], str) and is_whole(pair[1]) for pair in pairs):
        return None
    return [(name, int(tokens)) for name, tokens in pairs]


def _explain(case: _Case, right: _Batch, got: _Batch) -> str:
    """Return the misconception that matches the difference, the most serious first."""
    running, waiting, num_free, budget, size, max_seqs = case
    names = [name for name, _ in got]
    decodes = {request["id"] for request in _decodes(case)}
    before = names[: len(decodes)]
    started = [request for request in waiting if request["id"] in names]
    if len(set(names)) != len(names) or any(tokens < 1 for _, tokens in got):
        return "other-batch"
    if set(before) != decodes:
        return "decode-waits"
    if sum(tokens for _, tokens in got) > budget:
        return "past-budget"
    if started != waiting[: len(started)]:
        return "overtaken"
    if len(running) + len(started) > max_seqs:
        return "too-many-seqs"
    missing = [name for name, _ in right if name not in names]
    if missing:
        alone = next(r for r in [*running, *waiting] if r["id"] == missing[0])
        left = alone["tokens"] - alone["computed"]
        if dict(right)[missing[0]] < left:
            return "not-chunked"
        return "prefill-left-out" if alone in running else "left-waiting"
    if extra := [request for request in started if request["id"] not in dict(right)]:
        # It would fit if no other request took a block in this step.
        if _blocks(extra[0]["tokens"], size) + 1 <= num_free:
            return "blocks-forgotten"
        computed = dict(got)[extra[0]["id"]]
        in_part = computed < extra[0]["tokens"] and _blocks(computed, size) + 1 <= num_free
        return "part-admitted" if in_part else "no-growth"
    return "other-batch"


def _check_step(cases: list[_Case], schedule: Any) -> None:
    for case in cases:
        running, waiting, num_free, budget, size, max_seqs = case
        right = _schedule(case)
        value = schedule(*_copy(case))
        got = _pairs(value)
        if got == right:
            continue
        call = (
            f"running {_told(running)}; waiting {_told(waiting)}; num_free={num_free}, budget={budget}, "
            f"block_size={size}, max_seqs={max_seqs}: expected {right}, got {value if got is None else got}."
        )
        raise Wrong("no-batch" if got is None else _explain(case, right, got), call)


def _copy(case: _Case) -> tuple[Any, ...]:
    return [dict(r) for r in case[0]], [dict(r) for r in case[1]], *case[2:]


def _told(requests: list[_Request]) -> str:
    """Describe requests briefly: `A 7 of 8 (2 blocks)` has computed 7 of its 8 tokens and holds 2 blocks."""
    words = [f"{r['id']} {r['computed']} of {r['tokens']} ({r['blocks']} blocks)" for r in requests]
    return ", ".join(words) or "none"


def _names(rng: Random) -> list[str]:
    """Request ids whose sort order is not their order of arrival."""
    return rng.sample("ABCDEFGHIJKLMNOPQRSTUVWXYZ", 26)


@STEP.part("decodes first, then prefills in progress", points=3)
def _running_only(rng: Random, schedule: Any) -> None:
    a, b, c, *_ = _names(rng)
    cases: list[_Case] = [
        ([_request(a, 20, 4, 4), _request(b, 9, 8, 4), _request(c, 12, 0, 4)], [], 5, 100, 4, 8),
        ([_request(a, 20, 4, 4), _request(b, 9, 8, 4), _request(c, 30, 10, 4)], [], 5, 12, 4, 8),
        ([_request(a, 40, 4, 4), _request(b, 9, 8, 4), _request(c, 7, 6, 4)], [], 5, 2, 4, 8),
        ([_request(a, 9, 8, 4), _request(b, 30, 8, 4), _request(c, 11, 10, 4)], [], 5, 10, 4, 8),
    ]
    for _ in range(15):
        size, names = rng.choice([4, 8, 16]), _names(rng)
        running = [_random_running(rng, names.pop(), size, decode=i == 2) for i in range(rng.randint(3, 6))]
        rng.shuffle(running)
        cases.append((running, [], 10, rng.randint(len(running), 60), size, 16))
    _check_step(cases, schedule)


def _random_running(rng: Random, name: str, size: int, decode: bool = False) -> _Request:
    tokens = rng.randint(3, 5 * size)
    left = 1 if decode or rng.random() < 0.5 else rng.randint(2, tokens)
    return _request(name, tokens, tokens - left, size)


@STEP.part("a waiting request starts", points=3)
def _admission(rng: Random, schedule: Any) -> None:
    a, b, c, *_ = _names(rng)
    full, roomy = _request(a, 9, 8, 4), _request(b, 8, 7, 4)
    cases: list[_Case] = [
        ([roomy], [_waiting(c, 8)], 3, 100, 4, 8),  # two blocks and one for growth: exactly enough
        ([roomy], [_waiting(c, 8)], 2, 100, 4, 8),  # no block for growth
        ([roomy], [_waiting(c, 9)], 3, 100, 4, 8),  # rounded up, one block more
        ([full], [_waiting(c, 8)], 3, 100, 4, 8),  # the decode takes the third block
        ([full], [_waiting(c, 8)], 4, 100, 4, 8),
        ([full], [_waiting(c, 30)], 20, 11, 4, 8),  # a part of the prompt
        ([roomy], [_waiting(c, 30)], 4, 11, 4, 8),  # room for that part alone
        ([_request(a, 9, 8, 4), _request(b, 30, 8, 4)], [_waiting(c, 4)], 20, 23, 4, 8),  # no budget left
        ([], [_waiting(c, 12)], 4, 12, 4, 1),
    ]
    for _ in range(15):
        size, names = rng.choice([4, 8, 16]), _names(rng)
        running = [_random_running(rng, names.pop(), size) for _ in range(rng.randint(0, 3))]
        decodes = _free_after_decodes((running, [], 0, 0, size, 0))
        tokens = rng.randint(2, 6 * size)
        free = _blocks(tokens, size) + 1 - decodes + rng.choice([-1, 0, 0, 1])
        case = (running, [_waiting(names.pop(), tokens)], free, rng.randint(4, 120), size, rng.choice([4, 8]))
        cases.append(case)
    _check_step(cases, schedule)


@STEP.part("several requests wait, and none overtakes", points=4)
def _queue(rng: Random, schedule: Any) -> None:
    a, b, c, d, *_ = _names(rng)
    one = _request(a, 8, 7, 4)
    cases: list[_Case] = [
        ([one], [_waiting(b, 8), _waiting(c, 8), _waiting(d, 8)], 20, 100, 4, 8),
        (
            [one],
            [_waiting(b, 4), _waiting(c, 40), _waiting(d, 4)],
            6,
            20,
            4,
            8,
        ),  # the large one blocks the queue
        (
            [one],
            [_waiting(b, 8), _waiting(c, 8), _waiting(d, 8)],
            5,
            100,
            4,
            8,
        ),  # 2 and 2, and one for growth
        ([one], [_waiting(b, 8), _waiting(c, 8), _waiting(d, 8)], 6, 100, 4, 8),
        ([one], [_waiting(b, 8), _waiting(c, 8), _waiting(d, 8)], 20, 100, 4, 3),  # three sequences
        ([one], [_waiting(b, 8), _waiting(c, 8), _waiting(d, 8)], 20, 9, 4, 8),  # the budget ends with one
        ([one], [_waiting(b, 8), _waiting(c, 8), _waiting(d, 8)], 20, 12, 4, 8),  # … inside the second
    ]
    for _ in range(25):
        size, names = rng.choice([4, 8, 16]), _names(rng)
        running = [_random_running(rng, names.pop(), size) for _ in range(rng.randint(0, 3))]
        waiting = [_waiting(names.pop(), rng.randint(1, 4 * size)) for _ in range(rng.randint(2, 6))]
        free = rng.randint(4, 14)
        cases.append((running, waiting, free, rng.randint(4, 12 * size), size, rng.choice([4, 5, 16])))
    _check_step(cases, schedule)


COST = Exercise(
    "6.4",
    answers=("swap_seconds", "recompute_seconds", "break_even_gbit"),
    misconceptions={
        "one-way": "The blocks go out *and* come back: count both directions.",
        "bits": "Bits and bytes are mixed up: a byte has 8 bits, and the link is given in Gbit/s.",
        "part-of-a-block": "Whole blocks are copied: round the tokens up to blocks.",
        "extra-block": "n // block_size + 1 is one block too many for a multiple of block_size: round up.",
        "binary-giga": "Gbit/s are 10⁹ bits per second, and Tflop/s are 10¹² operations per second: use powers of "
        "ten, not of two.",
        "one-operation": "Each parameter costs two operations per token: a multiplication and an addition.",
        "other-cost": "The cost is wrong.",
    },
)
_Explained = list[tuple[str, float]]


def _compare(call: str, expected: float, got: Any, explained: _Explained) -> None:
    """Name the misconception whose value the answer gives, if it is not the expected one."""
    got = as_number(got)
    if _close(got, expected):
        return
    key = next((key for key, value in explained if _close(got, value)), "other-cost")
    shown = f"{got:.6g}" if isinstance(got, int | float) else show_got(got)
    raise Wrong(key, f"{call}: expected {expected:.6g}, got {shown}.")


def _close(got: Any, expected: float) -> bool:
    number = isinstance(got, int | float) and not isinstance(got, bool)
    return number and abs(got - expected) <= 1e-6 * abs(expected)


@COST.part("swap", points=2)
def _swap(rng: Random, swap_seconds: Any, *_: Any) -> None:
    cases = [(1000, 16, 327_680, 256.0), (1024, 16, 819_200, 512.0), (1, 16, 131_072, 128.0)]
    cases += [(rng.randint(1, 5000), rng.choice([8, 16, 32]), 2048 * rng.randint(3, 300), 64.0 * rng.randint(1, 9))
              for _ in range(8)]  # fmt: skip
    for n, size, kv, link in cases:
        slots = _blocks(n, size) * size
        right = 2 * slots * kv * 8 / (link * 1e9)
        wrong = [("one-way", right / 2), ("part-of-a-block", right * n / slots), ("bits", right / 8)]
        wrong += [("bits", right / 64), ("part-of-a-block", right * (n // size * size) / slots)]
        wrong += [("extra-block", right * (n // size + 1) * size / slots)]
        wrong += [("binary-giga", right * 1e9 / 2**30)]
        _compare(f"swap_seconds({n}, {size}, {kv}, {link})", right, swap_seconds(n, size, kv, link), wrong)


@COST.part("recompute", points=1)
def _recompute(rng: Random, swap_seconds: Any, recompute_seconds: Any, break_even_gbit: Any) -> None:
    cases = [(1000, 13e9, 156.0), (2000, 8e9, 495.0)]
    cases += [
        (rng.randint(1, 5000), rng.choice([7e9, 13e9, 70e9]), 10.0 * rng.randint(5, 90)) for _ in range(5)
    ]
    for n, parameters, tflops in cases:
        right = 2 * n * parameters / (tflops * 1e12)
        wrong = [("one-operation", right / 2), ("binary-giga", right * 1e12 / 2**40)]
        call = f"recompute_seconds({n}, {parameters:g}, {tflops})"
        _compare(call, right, recompute_seconds(n, parameters, tflops), wrong)


@COST.part("break-even", points=1)
def _break_even(rng: Random, swap_seconds: Any, recompute_seconds: Any, break_even_gbit: Any) -> None:
    cases = [(819_200, 13e9, 156.0), (131_072, 8e9, 495.0)]
    cases += [(2048 * rng.randint(3, 300), rng.choice([7e9, 13e9, 70e9]), 10.0 * rng.randint(5, 90))
              for _ in range(5)]  # fmt: skip
    for kv, parameters, tflops in cases:
        right = 8 * kv * tflops * 1e12 / parameters / 1e9
        wrong = [
            ("bits", right / 8),
            ("bits", right / 64),
            ("one-way", right / 2),
            ("one-operation", right * 2),
        ]
        wrong += [("binary-giga", right * 1e9 / 2**30)]
        call = f"break_even_gbit({kv}, {parameters:g}, {tflops})"
        _compare(call, right, break_even_gbit(kv, parameters, tflops), wrong)
