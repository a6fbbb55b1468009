"""From logits to the next token (chapter 7).

    logits / temperature  ->  keep the top_k likeliest  ->  keep the likeliest that make up top_p  ->  draw one

Temperature 0 takes the likeliest token. Any other temperature uses one random number per token, which depends only on
the request's seed and the token's position. So a request gets the same tokens whatever else runs in its batch, also
after a preemption, and sample i of a request with seed s equals the single sample of seed s + i. (This requires equal
logits. In float32 they are equal up to rounding; in bfloat16, another batch can round a close decision the other way.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .params import SamplingParams

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Draw:
    """A chosen token and its log-probability in the model's own distribution (temperature 1, no top_k or top_p)."""

    token_id: int
    logprob: float


@dataclass(frozen=True)
class Wish:
    """The draws to make from one row of the logits.

    `count` draws with seeds seed, seed + 1, …, or, for beam search, the `count` likeliest tokens. `position` is the
    position of the new token in its sequence.
    """

    sampling: SamplingParams
    count: int = 1
    seed: int = 0
    position: int = 0


class BadLogits(FloatingPointError):
    """Some rows of the logits hold NaN or infinity. `rows` lists their indices."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(
            f"rows {rows} of the logits hold NaN or infinity, or no finite value: the model or its cache is damaged"
        )
        self.rows = rows


def choose(logits: torch.Tensor, wishes: Sequence[Wish]) -> list[list[Draw]]:
    """Choose tokens for each row of logits [num_rows, vocab_size], of any dtype; computed in float32.

    Raises:
        BadLogits: a row holds NaN or +infinity, or -infinity for every token. Single tokens may have -infinity: they
            are never drawn.
    """
    logits = logits.float()
    norm = logits.logsumexp(dim=-1)
    if not norm.isfinite().all():
        raise BadLogits([row for row, finite in enumerate(norm.isfinite().tolist()) if not finite])
    kinds: dict[str, list[int]] = {"greedy": [], "random": [], "beam": []}
    for row, wish in enumerate(wishes):
        kind = "beam" if wish.sampling.beam_width else "random" if wish.sampling.temperature else "greedy"
        kinds[kind].append(row)
    chosen: list[list[Draw]] = [[]] * len(wishes)
    for kind, rows in kinds.items():
        if not rows:
            continue
        here = [wishes[row] for row in rows]
        part, part_norm = (logits, norm) if len(rows) == len(wishes) else (logits[rows], norm[rows])
        if kind == "greedy":
            tokens = _likeliest(part)
        elif kind == "beam":
            tokens = part.topk(max(wish.count for wish in here)).indices
        else:
            tokens = _draw(part, here)
        logprobs = part.gather(1, tokens) - part_norm[:, None]
        for row, wish, ids, ps in zip(rows, here, tokens.tolist(), logprobs.tolist(), strict=True):
            draws = [Draw(token, p) for token, p in zip(ids, ps, strict=True)]
            chosen[row] = draws * wish.count if kind == "greedy" else draws[: wish.count]
    return chosen


def _likeliest(logits: torch.Tensor) -> torch.Tensor:
    """Return token ids [num_rows, 1] of float32 rows; on ties, the first. On a CPU, NumPy is far faster."""
    import torch

    if logits.device.type == "cpu":
        return torch.from_numpy(logits.detach().numpy().argmax(axis=-1))[:, None]
    return logits.argmax(dim=-1, keepdim=True)


def _draw(logits: torch.Tensor, wishes: Sequence[Wish]) -> torch.Tensor:
    """Return token ids [num_rows, the largest count], drawn from the softmax.

    The probabilities are placed end to end on a line, in vocabulary order; a random point on it selects a token.
    """
    import torch

    device = logits.device
    most = torch.finfo(torch.float32).max  # a larger temperature would be infinite here, and so give NaN
    temperature = torch.tensor([min(wish.sampling.temperature, most) for wish in wishes], device=device)
    scaled = (logits - logits.max(dim=-1, keepdim=True).values) / temperature[:, None]
    cut = [row for row, wish in enumerate(wishes) if wish.sampling.top_k or wish.sampling.top_p < 1]
    if cut:
        least = _least_kept(scaled[cut], [wishes[row].sampling for row in cut])
        scaled[cut] = scaled[cut].masked_fill(scaled[cut] < least[:, None], -torch.inf)
    line = scaled.softmax(dim=-1).double().cumsum(dim=-1)
    end = line[:, -1:]
    uniform = torch.tensor(_uniform(wishes), dtype=torch.float64, device=device)
    # Rounding must not reach the end of the line.
    point = torch.minimum(uniform * end, end.nextafter(torch.zeros_like(end)))
    return torch.searchsorted(line, point, right=True)


def _least_kept(scaled: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Return the smallest scaled logit [num_rows] that top_k and top_p keep. It sorts only as far as necessary."""
    import torch

    device, vocab_size = scaled.device, scaled.shape[1]
    top_k = torch.tensor([min(p.top_k or vocab_size, vocab_size) for p in params], device=device)[:, None]
    top_p = torch.tensor([p.top_p if p.top_p < 1 else torch.inf for p in params], device=device)[:, None]
    width = max([p.top_k for p in params if p.top_k] + [64])
    while True:
        best = scaled.topk(min(width, vocab_size)).values
        inside = torch.arange(best.shape[1], device=device) < top_k
        total_inside = best.masked_fill(~inside, -torch.inf).logsumexp(-1, keepdim=True)
        total = torch.where(top_k < vocab_size, total_inside, scaled.logsumexp(-1, keepdim=True))
        probability = (best - total).double().exp()
        # Keep a token while the likelier tokens together do not reach top_p.
        kept = inside & (probability.cumsum(dim=-1) - probability < top_p)
        kept[:, 0] = True  # the likeliest token stays, however small top_p is
        if best.shape[1] == vocab_size or not (kept[:, -1:] & (top_k > best.shape[1])).any():
            return best.gather(1, kept.sum(dim=-1, keepdim=True) - 1)[:, 0]
        width *= 8


def _uniform(wishes: Sequence[Wish]) -> list[list[float]]:
    """Return a number in [0, 1) for each draw, from a counter-based generator: key = seed, counter = position."""
    most = max(wish.count for wish in wishes)
    numbers = [[0.0] * most for _ in wishes]
    for row, wish in zip(numbers, wishes, strict=True):
        for i in range(wish.count):
            bits = np.random.Philox(key=wish.seed + i, counter=wish.position)
            row[i] = float(np.random.Generator(bits).random())
    return numbers
