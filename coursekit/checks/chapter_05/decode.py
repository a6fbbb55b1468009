"""Check of chapter 5 for the whole decode kernel (5.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from coursekit.checks.answers import AnswerRaised
from coursekit.checks.chapter_05.kernels import OUT_OF_BOUNDS, SLOW, UNWRITTEN, run, written
from coursekit.checks.framework import Exercise, Wrong

DECODE = Exercise(
    "5.3",
    answers=("launch", "decode"),
    helpers=("launch",),
    kernels=True,
    misconceptions={
        "head-modulo": "Query head h read the wrong KV head. Heads that share one are consecutive, so KV head is h "
        "// (HEADS // KV_HEADS), neither h % KV_HEADS nor h // KV_HEADS.",
        "no-scale": "The scores were not multiplied by scale.",
        "no-mask": "Slots beyond the sequence's length are included in the attention: mask them.",
        "last-block": "The last, partly filled block is missing: round the number of blocks up.",
        "no-rescale": "When the maximum rises, the earlier sums are too large: multiply total and acc by exp(old "
        "maximum - new maximum).",
        "divides-early": "The accumulator is divided in every block: divide once, after the last block.",
        "nan-leaks": "A NaN from an unused slot reached the result. 0 times NaN is NaN, so load V with the mask.",
        "own-scale": "The scores were multiplied by 1 / sqrt(HEAD_DIM) and not by scale, which may be another number.",
        "overflow": "exp overflowed or underflowed: before exp, subtract the running maximum, which begins at -inf.",
        "program-ids": "The two program ids are exchanged: axis 0 of the grid is the sequence, axis 1 the query head.",
        "32-bit-offset": "An offset beyond 31 bits wrapped around: convert the block id with .to(tl.int64) before "
        "you multiply it.",
        "out-of-bounds": OUT_OF_BOUNDS
        + " Mask a tile's padding, in slots and in elements, in every load and store.",
        "other-attention": "The result is not the attention of the query over its sequence.",
    },
    slowness=SLOW,
)
HUGE = 20_000_000  # the first block of a cache of which only a part exists


@dataclass(frozen=True)
class _Batch:
    """Arguments of one launch. Shapes as in the exercise."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    tables: np.ndarray
    lens: np.ndarray
    scale: float

    @property
    def sizes(self) -> dict[str, int]:
        """The kernel's constants."""
        block_size, kv_heads, dim = self.k.shape[1:]
        padded = {"D": 1 << (dim - 1).bit_length(), "B": 1 << (block_size - 1).bit_length()}
        return {"MAX_BLOCKS": self.tables.shape[1], "HEADS": self.q.shape[1], "KV_HEADS": kv_heads,
                "HEAD_DIM": dim, "BLOCK_SIZE": block_size, **padded}  # fmt: skip

    def told(self, seq: int) -> str:
        """Describe one sequence."""
        used = -(-int(self.lens[seq]) // self.k.shape[1])
        table = self.tables[seq, :used].tolist()
        return f"{self.lens[seq]} tokens in blocks of {self.k.shape[1]}, table {table}"


def _batch(
    rng: Random,
    lengths: list[int],
    block_size: int,
    *,
    heads: int = 6,  # group size 2, but 3 KV heads: dividing by the wrong one gives a different result
    kv_heads: int = 3,
    dim: int = 12,
    spare: int = 1,
) -> _Batch:
    """Sequences over a shuffled pool. The `spare` unused table entries do not name an existing block.

    The longest sequence begins in the pool's last block and fills it, so a tile that is too wide or a block that is too
    long always reads beyond the cache.
    """
    draw = np.random.default_rng(rng.getrandbits(32))
    blocks = [-(-n // block_size) for n in lengths]
    order = draw.permutation(sum(blocks) + 3).astype(np.int32)
    full, last = sum(blocks[: lengths.index(max(lengths))]), int(order.argmax())
    order[[full, last]] = order[[last, full]]
    tables = np.full((len(lengths), max(blocks) + spare), 2**30, np.int32)
    for seq, n in enumerate(blocks):
        tables[seq, :n] = order[sum(blocks[:seq]) :][:n]
    q = draw.normal(size=(len(lengths), heads, dim)).astype(np.float32)
    shape = (len(order), block_size, kv_heads, dim)
    k, v = (draw.normal(size=shape).astype(np.float32) for _ in range(2))
    _needles(q, k, tables, lengths)
    return _Batch(q, k, v, tables, np.array(lengths, np.int32), 0.4)  # and not 1 / sqrt(dim)


def _needles(q: np.ndarray, k: np.ndarray, tables: np.ndarray, lengths: list[int]) -> None:
    """Make each sequence's last key like its first head's query, so that the maximum rises in the last block."""
    group = q.shape[1] // k.shape[2]
    for seq, n in enumerate(lengths):
        block, slot = divmod(n - 1, k.shape[1])
        k[tables[seq, block], slot] = 1.5 * q[seq, ::group]


def _attend(batch: _Batch, mistake: str = "", variant: int = 0) -> np.ndarray:
    """The right result in float64, or the result of a mistake."""
    out = np.zeros(batch.q.shape)
    size, (num_heads, dim) = batch.k.shape[1], batch.q.shape[1:]
    group = num_heads // batch.k.shape[2]
    scale = {"no-scale": 1.0, "own-scale": dim**-0.5}.get(mistake, batch.scale)
    for seq, length in enumerate(batch.lens.tolist()):
        used = -(-length // size)
        if mistake == "last-block":
            used = length // size
        for head in range(num_heads):
            kv_head = head // group
            if mistake == "head-modulo":
                kv_head = (head // batch.k.shape[2], head % batch.k.shape[2])[variant]
            top, total, acc = -np.inf, 0.0, np.zeros(dim)
            for logical, block in enumerate(batch.tables[seq, :used].tolist()):
                n = size if mistake == "no-mask" and variant == 0 else min(size, length - logical * size)
                k, v = batch.k[block, :n, kv_head].astype(float), batch.v[block, :n, kv_head].astype(float)
                scores = scale * (k @ batch.q[seq, head].astype(float))
                if mistake == "no-mask" and variant == 1:  # score 0, and zeros as values
                    scores, v = np.pad(scores, (0, size - n)), np.pad(v, ((0, size - n), (0, 0)))
                new_top = max(top, float(scores.max()))
                weights, rescale = np.exp(scores - new_top), np.exp(top - new_top)
                lost = mistake == "no-rescale"
                total = total * (1.0 if lost and variant in (0, 2) else rescale) + weights.sum()
                acc = acc * (1.0 if lost and variant in (0, 1) else rescale) + weights @ v
                if mistake == "divides-early":
                    acc = acc / total if variant == 0 else acc
                top = new_top
            with np.errstate(all="ignore"):
                out[seq, head] = acc if mistake == "divides-early" else acc / total
    return out


_VARIANTS = {
    "head-modulo": 2,
    "no-scale": 1,
    "own-scale": 1,
    "no-mask": 2,
    "last-block": 1,
    "no-rescale": 3,
    "divides-early": 1,
}


def _launched(launch: Any, kernel: Any, batch: _Batch, **more: Any) -> np.ndarray:
    """Run the kernel on a batch and return its output."""
    out = np.full(batch.q.shape, UNWRITTEN)
    args = (batch.q, batch.k, batch.v, batch.tables, batch.lens, batch.scale)
    return run(launch, kernel, batch.q.shape[:2], out, *args, **more, **batch.sizes)


def _check(
    launch: Any, kernel: Any, batch: _Batch, otherwise: str = "other-attention", within: float = 1e-3
) -> None:
    """Compare with the right result; name `otherwise` where special inputs led to infinity or NaN."""
    got = _launched(launch, kernel, batch)
    expected = _attend(batch)
    close = np.isclose(got, expected, rtol=within, atol=within / 10)
    if close.all():
        return
    seq, head, d = (int(i) for i in np.argwhere(~close)[0])
    explained = []
    if not np.isfinite(got[seq, head, d]) and otherwise in ("nan-leaks", "overflow"):
        q = batch.q * 0 if otherwise == "overflow" else batch.q  # the same without the suspected cause
        harmless = replace(batch, q=q, k=np.nan_to_num(batch.k), v=np.nan_to_num(batch.v))
        explained = [otherwise] if np.isfinite(_launched(launch, kernel, harmless)).all() else []
    explained += [
        mistake
        for mistake, variants in _VARIANTS.items()
        for variant in range(variants)
        if np.allclose(got, _attend(batch, mistake, variant), rtol=1e-3, atol=1e-4, equal_nan=True)
    ]
    raise Wrong(
        [*explained, "other-attention"][0],
        f"scale {batch.scale}, sequence {seq} ({batch.told(seq)}), head {head}, element {d}: "
        f"expected {expected[seq, head, d]:.4f}, got {written(got[seq, head, d])}.",
    )


@DECODE.part("one block per sequence", points=4)
def _one_block(rng: Random, launch: Any, decode: Any) -> None:
    try:
        _check(launch, decode, _batch(rng, [3, 8], block_size=8))
    except Wrong as wrong:
        if wrong.misconception == "out-of-bounds" and _is_square_only(rng, launch, decode):
            raise Wrong(
                "program-ids", f"With as many sequences as heads it is right: {wrong.detail}"
            ) from None
        raise


def _is_square_only(rng: Random, launch: Any, decode: Any) -> bool:
    """True if the kernel is right with as many sequences as heads, where exchanged program ids change nothing."""
    try:
        _check(launch, decode, _batch(rng, [3, 8, 5], block_size=8, heads=3, kv_heads=1))
    except (Wrong, AnswerRaised):
        return False
    return True


@DECODE.part("many blocks", points=5)
def _many_blocks(rng: Random, launch: Any, decode: Any) -> None:
    _check(launch, decode, _batch(rng, [7, 18], block_size=5))
    # The last block is full, and so is the table: an extra entry would be out of bounds.
    full = _batch(rng, [rng.choice([12, 16])], block_size=4, heads=3, kv_heads=1, dim=16, spare=0)
    _check(launch, decode, full)
    _check(launch, decode, _batch(rng, [rng.randint(9, 15)], block_size=4, heads=3, kv_heads=1, dim=16))


@DECODE.part("NaN in unused slots", points=3)
def _hostile(rng: Random, launch: Any, decode: Any) -> None:
    batch = _batch(rng, [7, rng.randint(11, 14)], block_size=5)
    owned = np.zeros(batch.k.shape[:2], bool)
    for seq, n in enumerate(batch.lens.tolist()):
        for t in range(n):
            owned[batch.tables[seq, t // 5], t % 5] = True
    poisoned = [np.where(owned[:, :, None, None], x, np.float32(np.nan)) for x in (batch.k, batch.v)]
    _check(launch, decode, replace(batch, k=poisoned[0], v=poisoned[1]), "nan-leaks")


@DECODE.part("scores far above and below 0", points=3)
def _far(rng: Random, launch: Any, decode: Any) -> None:
    for level in (-10_000.0, 10_000.0):
        batch = _batch(rng, [7, rng.randint(11, 14)], block_size=5)
        q, k = batch.q.copy(), batch.k.copy()
        q[:, :, 0], k[..., 0] = 100, level / (100 * batch.scale)
        _check(launch, decode, replace(batch, q=q, k=k), "overflow", within=2e-2)
    batch = _batch(rng, [7, rng.randint(11, 14)], block_size=5)
    _check(launch, decode, replace(batch, q=np.float32(100) * batch.q), "overflow")


@DECODE.part("a cache of more than 2³¹ elements", points=3)
def _huge(rng: Random, launch: Any, decode: Any) -> None:
    batch = _batch(rng, [7, 3], block_size=5)
    _check(launch, decode, batch)
    far = replace(
        batch, tables=np.where(batch.tables < 2**30, batch.tables + HUGE, batch.tables).astype(np.int32)
    )
    before = HUGE * batch.k[0].size
    try:
        # Of the large cache only the part from block HUGE on exists; the expected result is that of the small one.
        got = _launched(launch, decode, far, before={2: before, 3: before})
    except Wrong as wrong:
        told = f"Blocks from {HUGE:,} on, of {batch.k[0].size} elements each"
        raise Wrong("32-bit-offset", f"{told}: {wrong.detail}") from None
    if not np.allclose(got, _attend(batch), rtol=1e-3, atol=1e-4):
        raise Wrong(
            "32-bit-offset",
            f"Blocks from {HUGE:,} on: the result differs from that of the same blocks from 0 on.",
        )
