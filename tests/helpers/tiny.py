"""A tiny random Llama, dense and paged, and a tokenizer of bytes.

The model has SmolLM2's 9 query and 3 KV heads in 2 layers, and large weights: its tokens vary and its decisions are
clear, so that rounding never changes one.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

END_TOKEN = 256


class ByteTokenizer:
    """Token i is the byte i; 256 is the end-of-sequence token."""

    chat_template = None

    def __call__(self, text: str) -> Any:
        return SimpleNamespace(input_ids=list(text.encode()))

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        end = "" if skip_special_tokens else "<end>"
        pieces = bytes(token for token in tokens if token != END_TOKEN).decode(errors="replace")
        return pieces + end * (END_TOKEN in tokens)


@dataclass
class Tiny:
    """The same weights twice: `dense` as transformers runs them, `paged` with our attention."""

    dense: Any
    paged: Any

    def generate(
        self, prompt: Sequence[int], max_new_tokens: int, ends: list[int] | None = None
    ) -> list[int]:
        """Greedy tokens of the dense model, the prompt left out."""
        return _cut(self._generate(prompt, max_new_tokens, ends)[0, len(prompt) :].tolist(), ends or [])

    def beams(
        self, prompt: Sequence[int], max_new_tokens: int, width: int, ends: list[int] | None
    ) -> tuple[list[list[int]], list[float]]:
        """Of the dense model's beam search: all sequences, the prompt left out, and their scores per token."""
        out = self._generate(
            prompt,
            max_new_tokens,
            ends,
            num_beams=width,
            num_return_sequences=width,
            return_dict_in_generate=True,
            output_scores=True,
        )
        sequences = [_cut(sequence[len(prompt) :], ends or []) for sequence in out.sequences.tolist()]
        if width > 1:
            return sequences, out.sequences_scores.tolist()
        steps = [scores[0].log_softmax(-1) for scores in out.scores]
        total = sum(float(scores[token]) for scores, token in zip(steps, sequences[0], strict=True))
        return sequences, [total / len(sequences[0])]

    def _generate(
        self, prompt: Sequence[int], max_new_tokens: int, ends: list[int] | None, **options: Any
    ) -> Any:
        import torch

        ids = torch.tensor([list(prompt)])
        return self.dense.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=ends,
            **options,
        )


def _cut(tokens: list[int], ends: Sequence[int]) -> list[int]:
    """The tokens up to the first end-of-sequence token, which is kept; what follows is padding."""
    for i, token in enumerate(tokens):
        if token in ends:
            return tokens[: i + 1]
    return tokens


def make_tiny() -> Tiny:
    """The models, from a fixed seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from paged_ref.model.hf_model import PagedModel

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=72,
        intermediate_size=144,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=None,
    )
    dense = LlamaForCausalLM(config).eval()
    return Tiny(dense, PagedModel(copy.deepcopy(dense), ByteTokenizer()))


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    return make_tiny()


@pytest.fixture
def tiny_llm(tiny: Tiny) -> Callable[..., Any]:
    """Makes engines over the tiny model: `tiny_llm(num_blocks=8, …)`. `end_tokens` are its end-of-sequence tokens."""
    from paged_ref import LLM

    def make(end_tokens: Sequence[int] = (), **options: Any) -> LLM:
        model = copy.copy(tiny.paged)
        model.eos_token_ids = set(end_tokens)
        return LLM(model, **{"num_blocks": 256, "block_size": 8, **options})

    return make


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """24 ragged prompts of 1 to 60 tokens, some with a common beginning."""
    rng = random.Random(7)
    beginning = [rng.randrange(256) for _ in range(32)]
    lengths = (1, 2, 3, 5, 8, 13, 16, 17, 21, 24, 32, 33, 37, 48, 53, 60)
    made = [[rng.randrange(256) for _ in range(length)] for length in lengths]
    for _ in range(8):
        end = [rng.randrange(256) for _ in range(rng.randrange(9))]
        made.append(beginning[: rng.randrange(9, 33)] + end)
    return made
