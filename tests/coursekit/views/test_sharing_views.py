"""The views of chapter 4: trees of beams hold what a pool holds, savings are counted right, prefixes are cut right."""

from __future__ import annotations

import json
import random

import pytest
from matplotlib.colors import to_rgba

from coursekit import ROOT
from coursekit import beam_tree as beams
from coursekit.views import fork as fork_view
from coursekit.views import prefix as prefix_view
from coursekit.views.prefix import Moment, Node, chain_tree, race, radix_tree, two_trees
from coursekit.views.style import to_png
from paged_ref import BlockPool, BlockTable

PROMPTS = {
    "A": "you are a helpful assistant . what is a page ?",
    "B": "you are a helpful assistant . what is a block ?",
    "C": "you are a pirate . say hello",
}
WORDS = {name: text.split() for name, text in PROMPTS.items()}


def held_by_a_pool(prompt_tokens: int, parents: list[list[int]], block_size: int) -> tuple[int, int]:
    """Blocks held and table entries after the same forks and writes."""
    pool = BlockPool(1000, block_size)
    beams = [BlockTable(pool)]
    beams[0].append(prompt_tokens)
    for row in parents:
        grown = [beams[parent].fork() for parent in row]
        for beam in beams:
            beam.release()
        for beam in grown:
            beam.append(1)
            beam.take_copies()
        beams = grown
    pool.check()
    return pool.num_used, sum(len(beam.blocks) for beam in beams)


@pytest.mark.parametrize("seed", range(20))
def test_the_tree_holds_what_a_pool_holds(seed: int) -> None:
    rng = random.Random(seed)
    width, size, prompt = rng.randint(1, 5), rng.randint(1, 6), rng.randint(1, 12)
    parents = [[0] * width] + [
        [rng.randrange(width) for _ in range(width)] for _ in range(rng.randint(0, 15))
    ]
    physical, logical = held_by_a_pool(prompt, parents, size)
    assert sum(beams.versions(prompt, parents, size)) == physical
    picture = fork_view.beam_tree(prompt, parents, size)
    assert picture.summary.startswith(f"{physical} physical blocks for {logical} table entries")
    assert f"{physical} blocks held" in picture.fig.axes[0].get_title("left")


def test_dropped_beams_are_pale_and_living_ones_are_not() -> None:
    parents = [[0, 0], [0, 1], [0, 0]]
    assert beams.living(parents) == [{0}, {0}, {0, 1}]
    colours = [patch.get_facecolor() for patch in fork_view.beam_tree(2, parents, 4).fig.axes[0].patches]
    pale = [colour for colour in colours if colour == to_rgba(fork_view.DROPPED)]
    assert len(pale) == 2  # beam 1's tokens of the first two steps


def test_the_recorded_trees_are_complete() -> None:
    recorded = json.loads((ROOT / "bench/results/beams.json").read_text(encoding="utf-8"))
    assert sorted(search["width"] for search in recorded["searches"]) == [2, 2, 2, 4, 4, 4, 6, 6, 6]
    for search in recorded["searches"]:
        steps = search["steps"].split()
        assert len(steps) == 337 and set(steps[0]) == {"0"}
        assert {len(step) for step in steps} == {search["width"]}
        assert all(int(digit) < search["width"] for step in steps for digit in step)


def test_saved_is_the_share_of_all_entries() -> None:
    counts = [(2, 8), (6, 8), (4, 4)]
    assert fork_view.saved(counts) == pytest.approx(1 - 12 / 20)
    picture = fork_view.sharing_curves({"four": counts, "alone": [(3, 3)]})
    assert "four: at the end 4 blocks for 4 entries, 40% saved over all steps" in picture.summary
    assert [axes.get_title("left") for axes in picture.fig.axes] == ["four: 40% saved", "alone: 0% saved"]


def test_ours_stand_beside_the_papers_range() -> None:
    ours = {"x": {"mean": {2: 0.2, 4: 0.3}, "trace": {2: 0.07, 4: 0.12}}}
    picture = fork_view.saved_beside_paper(ours, {"x": (0.06, 0.1)})
    assert "x: paper 6.0% to 10.0%; mean 20% for 2, 30% for 4; trace 7% for 2, 12% for 4" in picture.alt
    assert "Of the 2 points of the kind 'trace', 1 lie within" in picture.summary
    with pytest.raises(ValueError, match="must be the same"):
        fork_view.saved_beside_paper(ours, {"y": (0.06, 0.1)})


def paths(node: Node, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    here = before + node.tokens
    return [path for child in node.children for path in paths(child, here)] or [here]


def test_a_chain_files_full_blocks_only() -> None:
    tree = chain_tree(WORDS, 4)
    nodes = [node for node in tree.all() if node.tokens]
    assert all(len(node.tokens) == 4 for node in nodes)
    assert [(" ".join(node.tokens), node.users) for node in nodes] == [
        ("you are a helpful", ["A", "B"]),
        ("assistant . what is", ["A", "B"]),
        ("you are a pirate", ["C"]),
    ]


def test_a_radix_tree_keeps_every_token_and_splits_only_where_prompts_part() -> None:
    tree = radix_tree(WORDS)
    assert sorted(paths(tree)) == sorted(map(tuple, WORDS.values()))
    for node in tree.all():
        assert len(node.children) != 1 or not node.tokens or node.children[0].users != node.users
        firsts = [child.tokens[0] for child in node.children]
        assert len(set(firsts)) == len(firsts)
    same = radix_tree({"A": ["x", "y"], "B": ["x"]})
    assert [(node.tokens, node.users) for node in same.all()][1:] == [(("x",), ["A", "B"]), (("y",), ["A"])]


def test_both_trees_are_drawn_and_told() -> None:
    picture = two_trees(PROMPTS, 4)
    assert picture.summary.endswith("chained blocks of 4: 8 of 12; radix tree: 9 of 17.")
    texts = [text.get_text() for axes in picture.fig.axes for text in axes.texts]
    assert texts.count("A+B") == 3 and texts.count("A+B+C") == 1
    assert to_png(picture.fig) == to_png(two_trees(PROMPTS, 4).fig)


def test_a_race_counts_what_was_written() -> None:
    lost = [Moment(0, "read", 1), Moment(1, "read", 1), Moment(0, "write", 2), Moment(1, "write", 2)]
    assert race(lost, 1, "Lost").summary == "Lost: 2 holders were added, and the count rose by 1."
    kept = [Moment(0, "read", 1), Moment(1, "wait"), Moment(0, "write", 2), Moment(1, "read", 2),
            Moment(1, "write", 3)]  # fmt: skip
    assert race(kept, 1, "Locked").summary == "Locked: 2 holders were added, and the count rose by 2."
    assert prefix_view.race(kept, 1, "Locked").alt.endswith("The count is 3 at the end.")
