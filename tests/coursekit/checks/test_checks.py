"""The framework of checks: what a proxy gives, what a message says, and that odd answers cannot confuse a check."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from coursekit.checks import CheckFailed, check, report
from coursekit.checks.answers import AnswerRaised, LocalHost, Proxy, Served, output
from coursekit.checks.codec import BadMessage, decode, encode, from_bytes, to_bytes
from coursekit.checks.framework import CRASHED, PASSED, REGISTRY, UNSOLVED, Exercise, Wrong, as_list, is_whole


@pytest.fixture
def task() -> Iterator[Exercise]:
    """An exercise of two parts about doubling."""
    made = Exercise("9.9", answers=("double",), misconceptions={"half": "Half is not double."})

    @made.part("whole numbers", points=2)
    def _whole(rng: Random, double: Any) -> None:
        n = rng.randint(1, 9)
        if double(n) != 2 * n:
            raise Wrong("half", f"double({n}): expected {2 * n}.")

    @made.part("lists, in place", points=1)
    def _lists(rng: Random, double: Any) -> None:
        values = [1, 2]
        double(output(values))
        if values != [2, 4]:
            raise Wrong("half", f"expected [2, 4], got {values}.")

    yield made
    del REGISTRY["9.9"]


def run(task: Exercise, answer: Any) -> list[tuple[str, int]]:
    return [(part.status, part.earned) for part in task.run([LocalHost().proxy(answer, "double")], 7).parts]


def doubled(x: Any) -> Any:
    if isinstance(x, list):
        x[:] = [2 * value for value in x]
    return 2 * x


def test_parts_earn_their_points_alone(task: Exercise) -> None:
    assert run(task, doubled) == [(PASSED, 2), (PASSED, 1)]
    assert run(task, lambda x: 2 * x) == [(PASSED, 2), ("wrong", 0)]
    assert run(task, lambda x: x.missing) == [(CRASHED, 0), (CRASHED, 0)]
    assert run(task, lambda x: (_ for _ in ()).throw(NotImplementedError)) == [(UNSOLVED, 0), (UNSOLVED, 0)]


def test_a_check_survives_whatever_an_answer_returns(task: Exercise) -> None:
    class Yes:
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    for odd in (None, "x", [], {}, Yes(), object, float("nan"), np.zeros(3), b"", {1: 2}, ...):
        assert run(task, lambda x, odd=odd: odd)[0][0] in ("wrong", CRASHED)


def test_check_prints_points_or_raises_the_message(
    task: Exercise, capsys: pytest.CaptureFixture[str]
) -> None:
    check("9.9", doubled)
    assert capsys.readouterr().out == "Exercise 9.9: 3 of 3 points. Everything passed.\n"
    with pytest.raises(
        CheckFailed, match=r"Exercise 9\.9: 0 of 3 points\n  ✗ whole numbers: Half is not double\. double"
    ) as e:
        check("9.9", lambda x: x // 2 if isinstance(x, int) else x)
    assert e.value._render_traceback_() == [str(e.value)]


def test_a_message_said_once_is_not_said_again(task: Exercise) -> None:
    verdict = task.fail_all(CRASHED, "It is broken.")
    assert report(verdict).count("It is broken.") == 1


def test_errors_of_answers_carry_call_and_name() -> None:
    class OutOfRoom(RuntimeError):
        pass

    def raising(n: int) -> None:
        raise OutOfRoom("no room")

    with pytest.raises(AnswerRaised, match=r"f\(3\) raised OutOfRoom: no room") as e:
        LocalHost().proxy(raising, "f")(3)
    assert e.value.bases[:2] == ("OutOfRoom", "RuntimeError")


def test_objects_stay_behind_proxies_and_plain_data_comes_by_value() -> None:
    class Pool:
        def __init__(self) -> None:
            self.ids = [1, 2]

        def __len__(self) -> int:
            return 2

        def __getitem__(self, key: int) -> int:
            return self.ids[key]

        def same(self, other: Pool) -> bool:
            return other is self

    make = LocalHost().proxy(Pool, "Pool")
    pool = make()
    assert isinstance(pool, Proxy) and repr(pool) == "Pool"
    pool.ids.append(3)
    assert pool.ids == [1, 2] and len(pool) == 2 and pool[1] == 2 and list(pool) == [1, 2]
    assert pool.same(pool) is True and pool.same(make()) is False


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2.5,
        math.inf,
        "é",
        b"\0\1",
        [1, [2]],
        (1, (2,)),
        {"a": [1]},
        {1: "x"},
        {1, 2},
        10**40,
        [],
        {},
    ],
)
def test_plain_data_arrives_as_it_was(value: Any) -> None:
    arrived = decode(from_bytes(to_bytes(encode(value, lambda thing: 0))), lambda n, kind: None)
    assert arrived == value and type(arrived) is type(value)


def test_numbers_and_arrays_of_numpy_and_subclasses_arrive_plain() -> None:
    class Level(enum.IntEnum):
        LOW = 1

    def send(value: Any) -> Any:
        return decode(from_bytes(to_bytes(encode(value, lambda thing: 5))), lambda n, kind: (n, kind))

    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    assert send(array).dtype == array.dtype and np.array_equal(send(array), array)
    for value, expected in ((np.int64(3), 3), (np.float32(0.5), 0.5), (Level.LOW, 1), (range(3), [0, 1, 2])):
        assert send(value) == expected and type(send(value)) is type(expected)
    assert send(object()) == (5, "object") and send(np.array([object()])) == (5, "ndarray")
    endless: list[Any] = []
    endless.append(endless)
    assert "handle" in str(encode(endless, lambda thing: 5))


@pytest.mark.parametrize(
    "data",
    [
        ["unknown", 1], {"a": 1}, [], ["handle", "1", "x"], ["array", "O", [1], "AAAA"],
        ["array", "<f4", [2], "AAAA"], ["array", "<f4", [-1], "AAAA"], ["array", "<i4", [True], "AAAAAA=="],
        ["bytes", "?"], ["dict", [1]], ["set", ["list", 1]], ["dict", [["list"], 1]],
    ],
)  # fmt: skip
def test_malformed_messages_are_refused(data: Any) -> None:
    with pytest.raises(BadMessage):
        decode(data, lambda n, kind: None)


@pytest.mark.parametrize("data", [b"{", b"\xff\xfe", b"[" * 200_000])
def test_what_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        from_bytes(data)


def test_helpers_are_lenient_where_it_does_not_matter() -> None:
    assert as_list((1, 2)) == as_list(np.array([1, 2])) == as_list(range(1, 3)) == [1, 2]
    assert as_list(3) == [3] and as_list("ab") == ["ab"]
    assert [is_whole(x) for x in (3, 3.0, 3.5, True, "3", None)] == [True, True, False, False, False, False]


# --- the call layer ---


def test_an_answer_changes_only_what_is_declared_as_an_output() -> None:
    def wreck(values: list[int], array: Any, deep: dict[str, list[int]], result: list[int], out: Any) -> None:
        values[:], array[...], result[:], out[...] = [9], 9, [9], 9
        deep["a"].append(9)
        deep.clear()

    values, array, deep = [1], np.zeros(2), {"a": [1]}
    result, out = [1], np.zeros(2)
    LocalHost().proxy(wreck, "wreck")(values, array, deep, result=output(result), out=output(out))
    assert (values, array.tolist(), deep) == ([1], [0, 0], {"a": [1]})
    assert (result, out.tolist()) == ([9], [9, 9])


def test_an_output_keeps_its_shape_and_gets_changes_made_before_an_error() -> None:
    def grow(out: Any, count: list[int]) -> None:
        count.append(1)
        out.resize(9, refcheck=False)
        raise ValueError

    out, count = np.zeros(2), [0]
    with pytest.raises(AnswerRaised):
        LocalHost().proxy(grow, "grow")(output(out), output(count))
    assert out.shape == (2,) and count == [0, 1]


def test_a_served_object_stays_with_the_check() -> None:
    calls: list[int] = []

    def double(n: int) -> int:
        calls.append(n)
        return [0, 2, 4][n]

    def answer(model: Any) -> list[int]:
        first = model.double(1)
        with pytest.raises(IndexError):
            model.double(7)
        model.double = lambda n: 100
        return [first, model.size, model.double(1)]

    served = Served({"double": double}, size=3)
    assert LocalHost().proxy(answer, "answer")(served) == [2, 3, 100]
    assert calls == [1, 7]


def test_texts_of_answers_are_short_and_printable(task: Exercise) -> None:
    def nasty(x: Any) -> None:
        raise type("E\x1b[31m", (Exception,), {})("\ud800" + "x" * 100_000)

    (part, _) = task.run([LocalHost().proxy(nasty, "double")], 7).parts
    assert part.status == CRASHED and len(part.message) < 1000 and part.message.isprintable()
