"""The flat batch of one step: the scheduler's decisions as arrays of integers (chapter 7).

All tokens of a step are concatenated in one row, whichever sequence they belong to. For a step in which sequence A
decodes its 10th token, B prefills 3 tokens and C decodes its 6th (block_size 4):

    token_ids         a9 | b0 b1 b2 | c5
    positions          9 |  0  1  2 |  5         a token's position in its own sequence
    slot_mapping      17 |  8  9 10 | 25         where its key and value are written
    query_start_loc    0,   1,        4,   5     where each sequence begins in the row, and the end
    seq_lens          10,   3,         6         tokens in the cache after this step's writes
    block_tables      [[7, 1, 4], [2, ·, ·], [5, 6, ·]]
    sample_rows        0,        3,    4         the last token of each sequence: its logits give the next token

Only the block tables are padded, and their unused entries are never read. (The names are vLLM's.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..attention.validate import Batch
from ..scheduling.step import Chunk, Step


@dataclass(frozen=True)
class StepBatch:
    """One step's arrays, int32, on the host; `attention` holds block_tables, seq_lens and query_start_loc."""

    token_ids: np.ndarray
    positions: np.ndarray
    slot_mapping: np.ndarray
    sample_rows: np.ndarray
    attention: Batch


def build_batch(step: Step) -> StepBatch:
    """Concatenate a step's chunks, in the order in which the scheduler chose them."""
    chunks = step.chunks
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for chunk in chunks:
        token_ids += chunk.sequence.token_ids[chunk.start : chunk.stop]
        positions += range(chunk.start, chunk.stop)
        slots += chunk.sequence.table.slots(chunk.start, chunk.stop)
    starts = np.cumsum([0] + [chunk.stop - chunk.start for chunk in chunks])
    last_rows = [int(start) - 1 for start, chunk in zip(starts[1:], chunks, strict=True) if chunk.samples]
    return StepBatch(
        token_ids=np.array(token_ids, dtype=np.int32),
        positions=np.array(positions, dtype=np.int32),
        slot_mapping=np.array(slots, dtype=np.int32),
        sample_rows=np.array(last_rows, dtype=np.int32),
        attention=Batch(
            block_tables=_table_rows(chunks),
            seq_lens=np.array([chunk.stop for chunk in chunks], dtype=np.int32),
            query_start_loc=starts.astype(np.int32),
        ),
    )


def _table_rows(chunks: list[Chunk]) -> np.ndarray:
    """[num_seqs, longest table] int32; unused entries are 0."""
    width = max((len(chunk.sequence.table.blocks) for chunk in chunks), default=0)
    rows = np.zeros((len(chunks), width), dtype=np.int32)
    for row, chunk in zip(rows, chunks, strict=True):
        row[: len(chunk.sequence.table.blocks)] = chunk.sequence.table.blocks
    return rows
