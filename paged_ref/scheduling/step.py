"""The scheduler's decision for one step of the engine, before it is turned into arrays (chapter 6).

The order matters. Blocks are swapped out before anything else is written into them, and swapped in and copied before
anything is read from them. In each layer, all chunks write their keys and values before any chunk reads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .request import Request, Sequence


class Chunk(NamedTuple):
    """Tokens start .. stop - 1 of one sequence, computed in one step."""

    request: Request
    sequence: Sequence
    start: int
    stop: int

    @property
    def samples(self) -> bool:
        """True if the chunk ends with the sequence's last token, so that the step yields the next token."""
        return self.stop == len(self.sequence.token_ids)


@dataclass
class Step:
    """The work of one step, in order: swaps out, swaps in, copies, then the chunks.

    Block pairs are (source, destination). `cached_tokens` counts the tokens that the admitted requests found in the
    prefix cache.
    """

    swaps_out: list[tuple[int, int]] = field(default_factory=list)
    swaps_in: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    admitted: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    cached_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(chunk.stop - chunk.start for chunk in self.chunks)
