"""Stop strings and the reason a sequence ends, through the engine."""

from __future__ import annotations

from typing import Any

import pytest

from paged_ref import LLM, SamplingParams


@pytest.fixture
def scripted(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make an engine whose model generates these bytes, whatever the prompt."""
    import torch

    def make(script: bytes, tokenizer: Any = None) -> LLM:
        from copy import copy

        model = copy(tiny.paged)
        model.tokenizer = tokenizer or tiny.paged.tokenizer
        model.eos_token_ids = set()

        def forward(batch: Any, *rest: Any) -> torch.Tensor:
            logits = torch.zeros(len(batch.sample_rows), model.vocab_size)
            for row, at in enumerate(batch.sample_rows):
                logits[row, script[int(batch.positions[at])]] = 9.0
            return logits

        model.forward = forward
        return LLM(model, num_blocks=16, block_size=8)

    return make


@pytest.mark.parametrize("num_tokens", [3, 4, 9])
def test_a_stop_string_completed_by_the_last_token_is_the_reason(scripted: Any, num_tokens: int) -> None:
    llm = scripted(b"abc, d and so on and on")
    for stop, reason in (("bc", "stop"), ("abc", "stop"), ("bcx", "length")):
        if num_tokens > 3 and reason == "length":
            continue
        sampling = SamplingParams(num_tokens, stop=[stop])
        (output,) = llm.generate([[1]], sampling)[0].outputs
        assert (output.finish_reason, len(output.token_ids)) == (reason, 3)
        assert output.text == {"bc": "a", "abc": "", "bcx": "abc"}[stop]
        *_, last = llm.stream([[1]], sampling)
        assert last.finish_reason == reason


def test_held_back_text_that_completes_a_stop_string_at_the_length_limit(scripted: Any) -> None:
    """The half character is certain only at the end, and then it completes the stop string."""
    llm = scripted("x€".encode() + b"\xe2\x82" + b"rest")
    (output,) = llm.generate([[1]], SamplingParams(6, stop=["x€\ufffd"]))[0].outputs
    assert (output.text, output.finish_reason) == ("", "stop")


def test_a_stop_string_before_half_a_character_is_matched_at_once(tiny: Any, scripted: Any) -> None:
    class Pairs:
        """Two bytes to a token: the second half of one may be the beginning of a character."""

        def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
            pairs = {0: b"so", 1: b"#\xe2", 2: b"\x82\xac", 3: b"on"}
            return b"".join(pairs[token] for token in tokens).decode(errors="replace")

    (output,) = (
        scripted(bytes([0, 1, 2, 3, 3]), Pairs()).generate([[1]], SamplingParams(5, stop="#"))[0].outputs
    )
    assert (output.text, output.token_ids, output.finish_reason) == ("so", [0, 1], "stop")


@pytest.mark.parametrize("stop", ["<|end|>", "b<|end|>", "<|end|>c"])
def test_a_special_token_as_a_stop_string(scripted: Any, stop: str) -> None:
    class Special:
        """Letters, and the special token <|end|>, which decoding leaves out."""

        all_special_ids = (1,)

        def convert_ids_to_tokens(self, token: int) -> str:
            return "<|end|>" if token == 1 else chr(token)

        def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
            return "".join(chr(token) for token in tokens if token != 1)

    (output,) = scripted(b"ab\x01cdefgh", Special()).generate([[1]], SamplingParams(8, stop=stop))[0].outputs
    assert output.finish_reason == "stop"
    assert output.text == {"<|end|>": "ab", "b<|end|>": "a", "<|end|>c": "ab"}[stop]
    assert output.token_ids == list(b"ab\x01cdefgh"[: 4 if stop.endswith("c") else 3])
