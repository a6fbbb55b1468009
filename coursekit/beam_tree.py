"""The blocks that a beam search holds, derived from the tree of its beams (chapter 4).

A tree is a list of steps; `parents[step][i]` is the beam that new beam i extends. Invariant: `versions` counts the
blocks that a pool holds after the same forks and writes (a test replays them).
"""

from __future__ import annotations

from collections.abc import Sequence


def living(parents: Sequence[Sequence[int]]) -> list[set[int]]:
    """For each step, the beams that are ancestors of the last generation; the last entry is that generation."""
    alive = [set(range(len(parents[-1])))]
    for row in reversed(parents[1:]):
        alive.append({row[beam] for beam in alive[-1]})
    return alive[::-1]


def versions(prompt_tokens: int, parents: Sequence[Sequence[int]], block_size: int) -> list[int]:
    """For each logical block, the number of versions that live beams hold. The sum is the number of physical blocks."""
    alive, total = living(parents), prompt_tokens + len(parents)
    lasts = [min(total, end) - 1 for end in range(block_size, total + block_size, block_size)]
    return [len(alive[last - prompt_tokens]) if last >= prompt_tokens else 1 for last in lasts]
