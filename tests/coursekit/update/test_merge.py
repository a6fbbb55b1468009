"""Merging keeps what the learner wrote, brings in what the course changed, and is idempotent."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coursekit.update.merge import CONFLICT, cell_source, merge


def cell(id: str, source: str | None = None, kind: str = "code", **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": id,
        "cell_type": kind,
        "source": source or f"the text of {id}",
        "metadata": {},
    }
    return made | more


def book(*cells: dict[str, Any] | str) -> dict[str, Any]:
    whole = [cell(one) if isinstance(one, str) else one for one in cells]
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": copy.deepcopy(whole)}


def texts(notebook: dict[str, Any]) -> list[str]:
    return [cell_source(one) for one in notebook["cells"]]


def ids(notebook: dict[str, Any]) -> list[str]:
    return [one["id"] for one in notebook["cells"]]


def test_an_unedited_copy_becomes_the_new_version() -> None:
    old, new = book("a", "b", "c"), book("a", "x", "c", cell("b", "b, reworded"))
    done = merge(old, copy.deepcopy(old), new)
    assert done.notebook["cells"] == new["cells"] and done.changed


def test_an_edited_cell_stays_and_the_rest_is_updated() -> None:
    mine = book("a", cell("b", "my b"), "c")
    done = merge(book("a", "b", "c"), mine, book("a", "b", cell("c", "c 2"), "d"))
    assert texts(done.notebook) == ["the text of a", "my b", "c 2", "the text of d"]
    assert (done.updated, done.added, done.kept, done.conflicts) == (1, 1, 1, [])


@pytest.mark.parametrize("kind", ["code", "markdown"])
def test_a_conflict_keeps_both_versions_side_by_side(kind: str) -> None:
    old, mine = book("a", cell("b", "b", kind)), book("a", cell("b", "mine", kind), cell("own", "z"))
    new = book("a", cell("b", "theirs", kind))
    done = merge(old, mine, new)
    assert ids(done.notebook) == ["a", "b", f"{CONFLICT}b", "own"]
    assert texts(done.notebook)[1] == "mine" and "theirs" in texts(done.notebook)[2]
    assert done.notebook["cells"][2]["cell_type"] == "markdown", "it must not run, nor count as an answer"
    assert done.conflicts == ["theirs"]
    again = merge(old, done.notebook, new)  # an update that was stopped before it renewed the base
    assert again.notebook == done.notebook and not again.changed
    later = merge(new, done.notebook, book("a", cell("b", "theirs 2", kind)))
    assert ids(later.notebook) == ids(done.notebook) and "theirs 2" in texts(later.notebook)[2]


def test_a_reworded_cell_with_a_new_id_replaces_the_old_one() -> None:
    old = book("a", cell("h1", "how many bytes does a token leave?"), "c")
    new = book("a", cell("h2", "how many bytes does one token leave?"), "c")
    assert ids(merge(old, copy.deepcopy(old), new).notebook) == ["a", "h2", "c"]
    mine = book("a", cell("h1", "how many bytes does a token leave? 42"), "c")
    done = merge(old, mine, new)
    assert ids(done.notebook) == ["a", "h1", f"{CONFLICT}h2", "c"] and len(done.conflicts) == 1


def test_deleted_cells_stay_deleted_until_their_text_changes() -> None:
    old, mine = book("a", "b", "c"), book("a", "c")
    assert ids(merge(old, mine, old).notebook) == ["a", "c"]
    assert ids(merge(old, mine, book("a", cell("b", "b 2"), "c")).notebook) == ["a", "b", "c"]
    graded = {"nbgrader": {"grade_id": "b"}}
    old = book("a", cell("b", metadata=graded), "c")
    assert ids(merge(old, mine, old).notebook) == ["a", "b", "c"], "an exercise's cells come back"


def test_cells_that_the_course_drops_go_unless_they_were_edited() -> None:
    old, new = book("a", "b", "c", "d"), book("a", "d")
    done = merge(old, book("a", "b", cell("c", "my c"), "d"), new)
    assert texts(done.notebook) == ["the text of a", "my c", "the text of d"]
    assert (done.removed, done.kept) == (1, 1)


def test_own_cells_stay_after_the_cell_they_followed() -> None:
    old = book("a", "b", "c")
    mine = book(cell("first", "1"), "a", cell("mine", "2"), "b", "c", cell("last", "3"))
    done = merge(old, mine, book("a", "new", "b", "c"))
    assert [text for text in ids(done.notebook) if text not in "abc"] == [
        "first",
        "new",
        "mine",
        "last",
    ] or ids(done.notebook) == ["first", "a", "mine", "new", "b", "c", "last"]
    moved = merge(old, mine, book("c", "a", "b"))
    assert ids(moved.notebook) == ["first", "c", "last", "a", "mine", "b"]


def test_the_learners_order_stays_if_the_course_keeps_its_own() -> None:
    done = merge(book("a", "b", "c"), book("c", "a", "b"), book("a", "b", cell("c", "c 2")))
    assert texts(done.notebook) == ["c 2", "the text of a", "the text of b"]


def test_outputs_of_the_learners_run_stay_and_others_are_renewed() -> None:
    old = book(cell("a", outputs=["1"], execution_count=1), cell("b", outputs=["2"], execution_count=2))
    mine = copy.deepcopy(old)
    mine["cells"][0] |= {
        "outputs": ["mine"],
        "execution_count": 7,
        "metadata": {"jupyter": {"outputs_hidden": False}},
    }
    new = copy.deepcopy(old)
    for one in new["cells"]:
        one |= {"outputs": ["new"], "metadata": {"jupyter": {"outputs_hidden": True}}}
    first, second = merge(old, mine, new).notebook["cells"]
    assert (first["outputs"], first["execution_count"]) == (["mine"], 7)
    assert first["metadata"]["jupyter"] == {"outputs_hidden": False}
    assert second == new["cells"][1]


def test_a_copy_without_ids_or_with_other_ids_is_matched_by_text_and_exercise() -> None:
    graded = {"nbgrader": {"grade_id": "exercise-2-1"}}
    old = book("a", cell("exercise-2-1", "stub", metadata=graded), "c")
    mine = book(
        cell("old1", "the text of a"), cell("old2", "my answer", metadata=graded), cell("old3", "own")
    )
    del mine["cells"][2]["id"]
    done = merge(old, mine, book("a", cell("exercise-2-1", "stub", metadata=graded), cell("c", "c 2")))
    assert texts(done.notebook) == ["the text of a", "my answer", "c 2", "own"]
    assert ids(done.notebook)[:2] == ["a", "exercise-2-1"] and len(set(ids(done.notebook))) == 4


def test_a_copied_cell_counts_as_the_learners_own() -> None:
    old = book("a", "b")
    done = merge(old, book("a", cell("a", "a again"), "b"), book("a", cell("b", "b 2")))
    assert texts(done.notebook) == ["the text of a", "a again", "b 2"] and len(set(ids(done.notebook))) == 3


def test_without_a_base_the_learners_text_stays() -> None:
    graded = {"nbgrader": {"grade_id": "q"}}
    mine = book("a", cell("q", "my answer", metadata=graded), cell("b", "my b"), cell("own", "own"))
    done = merge(None, mine, book("a", cell("q", "stub", metadata=graded), "b", "c"))
    assert {"my answer", "my b", "own", "the text of c"} <= set(texts(done.notebook))
    assert ids(done.notebook).count(f"{CONFLICT}q") == 0, "a stub is not shown beside an answer"


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)
EDITS = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["x", "y"]))


@given(NAMES, NAMES, NAMES, EDITS, EDITS)
def test_nothing_that_the_learner_wrote_is_lost(
    one: list[str], two: list[str], three: list[str], my_edits: dict[str, str], their_edits: dict[str, str]
) -> None:
    old = book(*one)
    mine = book(*(cell(id, f"mine {id} {my_edits[id]}" if id in my_edits else None) for id in two))
    new = book(*(cell(id, f"theirs {id} {their_edits[id]}" if id in their_edits else None) for id in three))
    before = copy.deepcopy((old, mine, new))
    done = merge(old, mine, new)
    assert (old, mine, new) == before
    assert {f"mine {id} {my_edits[id]}" for id in two if id in my_edits} <= set(texts(done.notebook))
    assert len(set(ids(done.notebook))) == len(ids(done.notebook))
    again = merge(new, done.notebook, new)
    assert again.notebook == done.notebook and not again.changed
