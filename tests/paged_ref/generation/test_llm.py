"""The engine: samples, stop strings, streams, prefix hits, and what it hands back."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

import pytest

from paged_ref import SamplingParams
from paged_ref.sampling.detokenizer import Detokenizer

HOT = SamplingParams(max_tokens=16, temperature=1.0, seed=11)


def tokens_of(outputs: Any) -> list[list[list[int]]]:
    return [[completion.token_ids for completion in output.outputs] for output in outputs]


def with_(sampling: SamplingParams, **changes: Any) -> SamplingParams:
    from dataclasses import replace

    return replace(sampling, **changes)


# ---- parallel samples


@pytest.mark.parametrize("length", [32, 33])
def test_samples_share_the_prompt_and_copy_only_the_diverging_block(
    tiny_llm: Any, prompts: Any, length: int
) -> None:
    prompt = next(prompt for prompt in prompts if len(prompt) == length)
    llm = tiny_llm(block_size=8)
    request = llm.add_request(prompt, with_(HOT, n=4))
    assert [chunk.stop - chunk.start for chunk in llm.step().chunks] == [length]  # prefilled once
    assert llm.pool.num_used == -(-length // 8)  # forked, and not a block more
    step = llm.step()
    llm.scheduler.check()
    assert len(step.copies) == (0 if length == 32 else 3)  # the last holder of a partly full block keeps it
    assert llm.pool.num_used == 4 + 4
    while request.sequences:
        assert not llm.step().copies
        llm.scheduler.check()
    assert llm.pool.num_used == 0
    assert llm.metrics.computed_tokens == length + 4 * 15


@pytest.mark.parametrize("options", [{}, {"num_blocks": 15}, {"num_blocks": 15, "preemption": "swap"}])
def test_a_sample_is_what_its_seed_draws_alone(tiny_llm: Any, prompts: Any, options: dict[str, Any]) -> None:
    llm = tiny_llm(**options)
    alone = [llm.generate(prompts[7], with_(HOT, seed=11 + i))[0].outputs[0] for i in range(3)]
    others = [with_(HOT, seed=900 + i, top_k=20, top_p=0.9) for i in range(5)]
    together = llm.generate(
        [*prompts[8:11], prompts[7], *prompts[:2]], [*others[:3], with_(HOT, n=3), *others[3:]]
    )
    assert tokens_of(together)[3] == [output.token_ids for output in alone]
    assert [output.index for output in together[3].outputs] == [0, 1, 2]
    for sample, output in zip(together[3].outputs, alone, strict=True):
        assert sample.cumulative_logprob == pytest.approx(output.cumulative_logprob, abs=1e-3)
    assert len({tuple(output.token_ids) for output in alone}) == 3
    assert llm.metrics.preemptions > 0 or not options


def test_without_a_seed_every_request_draws_anew(tiny_llm: Any, prompts: Any) -> None:
    llm = tiny_llm()
    first, second = llm.generate([prompts[7]] * 2, with_(HOT, seed=None))
    assert first.outputs[0].token_ids != second.outputs[0].token_ids


def test_samples_finish_separately(tiny_llm: Any, prompts: Any) -> None:
    """With many end tokens the samples end at different steps, and each frees its blocks at once."""
    llm = tiny_llm(range(0, 256, 16), block_size=2)
    request = llm.add_request(prompts[9], with_(HOT, n=6, max_tokens=40))
    widths = []
    while request.sequences:
        llm.step()
        llm.scheduler.check()
        widths.append(len(request.sequences))
    outputs = llm.output(request).outputs
    assert widths[0] > widths[-1] == 0 and len(set(widths)) > 2
    assert [output.index for output in outputs] == list(range(6))
    for output in outputs:
        assert output.finish_reason == ("stop" if output.token_ids[-1] % 16 == 0 else "length")
        assert not any(token % 16 == 0 and token < 256 for token in output.token_ids[:-1])


def test_ignore_eos_goes_on(tiny: Any, tiny_llm: Any, prompts: Any) -> None:
    expected = tiny.generate(prompts[5], 12)
    llm = tiny_llm([expected[3]])
    stopped, on = llm.generate([prompts[5]] * 2, [SamplingParams(12), SamplingParams(12, ignore_eos=True)])
    assert stopped.outputs[0].token_ids == expected[: expected.index(expected[3]) + 1]
    assert stopped.outputs[0].finish_reason == "stop"
    assert (on.outputs[0].token_ids, on.outputs[0].finish_reason) == (expected, "length")


# ---- text and stop strings


class Pieces:
    """A tokenizer whose token i reads as pieces[i]."""

    chat_template = None

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = pieces

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(self.pieces[token] for token in tokens)


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "used"),
    [
        (["one ", "two ", "three"], ["two"], "one ", 2),
        (["one t", "w", "o three"], ["two"], "one ", 3),  # spans three tokens
        (["a", "b", "c", "abd"], ["abd"], "abc", 4),  # began twice
        (["aa", "ab"], ["aab"], "a", 2),  # the beginning is found inside what was held back
        (["xabcx"], ["c", "abc", "bc"], "x", 1),  # the earliest place counts
        (["end"], ["end"], "", 1),
        (["a", "b"], ["bc"], "ab", 2),  # held back, then given out at the end
    ],
)
def test_text_is_cut_before_a_stop_string(pieces: list[str], stop: list[str], text: str, used: int) -> None:
    detokenizer = Detokenizer(Pieces(pieces), stop)
    given = []
    for token in range(len(pieces)):
        given.append(detokenizer.add(token))
        if detokenizer.stopped:
            break
    given.append(detokenizer.finish())
    assert len(given) - 1 == used
    assert "".join(given) == detokenizer.text == text


def test_held_back_text_is_given_out_as_soon_as_it_is_certain() -> None:
    detokenizer = Detokenizer(Pieces(["go <", "/", "e", "f> on"]), ["</end>"])
    assert [detokenizer.add(token) for token in range(4)] == ["go ", "", "", "</ef> on"]


def test_half_characters_are_held_back(tiny: Any) -> None:
    detokenizer = Detokenizer(tiny.paged.tokenizer)
    assert [detokenizer.add(byte) for byte in "aé€".encode()] == ["a", "", "é", "", "", "€"]
    assert detokenizer.add(0xE2) == ""
    assert detokenizer.finish() == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("place", [2, 5, 9])
def test_a_stop_string_ends_a_sample(tiny: Any, tiny_llm: Any, place: int) -> None:
    prompt = [104, 101, 108, 108, 111]
    llm = tiny_llm()
    free = llm.generate(prompt, with_(HOT, n=3, max_tokens=20))[0].outputs
    for target in free:
        decoded = tiny.paged.tokenizer.decode(target.token_ids)
        stop = decoded[place : place + 2]
        again = llm.generate(prompt, with_(HOT, n=3, max_tokens=20, stop=stop))[0].outputs
        for before, after in zip(free, again, strict=True):
            whole = tiny.paged.tokenizer.decode(before.token_ids)
            if stop in whole:
                assert after.text == whole[: whole.index(stop)]
                assert after.finish_reason == "stop"
                assert after.token_ids == before.token_ids[: len(after.token_ids)]
                assert stop in tiny.paged.tokenizer.decode(
                    after.token_ids
                )  # token_ids keep what was generated
            else:
                assert (after.text, after.token_ids) == (whole, before.token_ids)


def test_stop_strings_need_a_tokenizer(tiny: Any) -> None:
    from copy import copy

    from paged_ref import LLM

    model = copy(tiny.paged)
    model.tokenizer = None
    with pytest.raises(ValueError, match=r"prompt 0: stop = \('x',\)"):
        LLM(model, num_blocks=8).generate([[1, 2]], SamplingParams(stop="x"))


# ---- streams and outputs


def test_a_stream_gives_what_generate_gives(tiny_llm: Any, prompts: Any) -> None:
    llm = tiny_llm()
    sampling = with_(HOT, n=2, stop=("z", "\x00\x01"))
    outputs = llm.generate(prompts[:6], sampling)
    events = list(llm.stream(prompts[:6], sampling))
    for i, output in enumerate(outputs):
        for sample in output.outputs:
            mine = [event for event in events if (event.prompt_index, event.index) == (i, sample.index)]
            assert [event.token_id for event in mine] == sample.token_ids
            assert "".join(event.text for event in mine) == sample.text
            assert [event.finish_reason for event in mine if event.finish_reason] == [sample.finish_reason]


def test_two_streams_and_a_generate_may_be_interleaved(tiny_llm: Any, prompts: Any) -> None:
    llm = tiny_llm()
    expected = tokens_of(llm.generate(prompts[:3], SamplingParams(10)))
    first, second = llm.stream(prompts[0], SamplingParams(10)), llm.stream(prompts[1], SamplingParams(10))
    found: list[list[int]] = [[next(first).token_id], [next(second).token_id]]
    assert tokens_of(llm.generate(prompts[2], SamplingParams(10))) == expected[2:]
    for tokens, stream in zip(found, (first, second), strict=True):
        tokens += [event.token_id for event in stream]
    assert found == [sequences[0] for sequences in expected[:2]]


def test_outputs_carry_times_and_log_probabilities(tiny: Any, tiny_llm: Any, prompts: Any) -> None:
    import torch

    llm = tiny_llm()
    started = time.perf_counter()
    (output,) = llm.generate(prompts[4], SamplingParams(8))
    assert (
        started <= output.arrival_time <= output.first_token_time <= output.finish_time <= time.perf_counter()
    )
    assert output.time_to_first_token == pytest.approx(output.first_token_time - output.arrival_time)
    assert output.time_per_output_token == pytest.approx((output.finish_time - output.first_token_time) / 7)
    assert output.prompt_token_ids == prompts[4]
    tokens = output.outputs[0].token_ids
    with torch.inference_mode():
        logits = tiny.dense(torch.tensor([prompts[4] + tokens])).logits[0, len(prompts[4]) - 1 : -1]
    dense = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None]).sum()
    assert output.outputs[0].cumulative_logprob == pytest.approx(float(dense), abs=1e-3)


def test_a_request_can_be_looked_at_while_it_runs(tiny_llm: Any, prompts: Any) -> None:
    llm = tiny_llm()
    request = llm.add_request(prompts[4], SamplingParams(8))
    assert llm.output(request).time_to_first_token is None
    for _ in range(3):
        llm.step()
    output = llm.output(request)
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason, output.finish_time) == (
        3,
        None,
        None,
    )
    llm.abort(request)
    assert llm.output(request).outputs[0].finish_reason == "abort"


def test_progress_shows_after_two_seconds_on_a_terminal_only(
    tiny_llm: Any, prompts: Any, monkeypatch: Any
) -> None:
    from paged_ref.generation import progress_bar as progress

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    llm = tiny_llm()
    for stream, silence, shown in (
        (Terminal(), 0.0, True),
        (Terminal(), 60.0, False),
        (io.StringIO(), 0.0, False),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(progress, "SECONDS_OF_SILENCE", silence)
        llm.generate(prompts[:4], SamplingParams(4))
        assert ("requests" in stream.getvalue()) is shown


# ---- the prefix cache, end to end


def test_twice_the_same_prompt_in_one_batch(tiny_llm: Any, prompts: Any) -> None:
    """The second must not read blocks that the first has not computed yet."""
    for prompt in (prompts[10], prompts[15]):
        alone = tokens_of(tiny_llm().generate([prompt], SamplingParams(10)))
        llm = tiny_llm(max_num_batched_tokens=64)
        assert tokens_of(llm.generate([prompt, prompt], SamplingParams(10))) == alone * 2
        assert tokens_of(llm.generate([prompt, prompt], SamplingParams(10))) == alone * 2
        assert llm.metrics.cached_tokens > 0
        llm.scheduler.check()


@pytest.mark.parametrize("num_blocks", [1, 4])
def test_a_prompt_of_whole_blocks_twice_in_a_row(
    tiny: Any, tiny_llm: Any, prompts: Any, num_blocks: int
) -> None:
    """The whole prompt is cached the second time; its last token must be computed all the same."""
    prompt = prompts[15][: 8 * num_blocks]
    llm = tiny_llm(block_size=8)
    expected = [[tiny.generate(prompt, 9)]]
    assert tokens_of(llm.generate([prompt], SamplingParams(9))) == expected
    assert tokens_of(llm.generate([prompt], SamplingParams(9))) == expected
    assert llm.metrics.cached_tokens == 8 * (num_blocks - 1)
    assert tokens_of(llm.generate([prompt], SamplingParams(9, cache_salt="other"))) == expected
    assert llm.metrics.cached_tokens == 8 * (num_blocks - 1)  # another salt finds nothing


def test_unused_slots_may_hold_anything(tiny: Any, tiny_llm: Any, prompts: Any) -> None:
    llm = tiny_llm(block_size=16, preemption="swap", num_blocks=14, num_host_blocks=14)
    for cache in (llm.cache, llm.host_cache):
        cache.keys.fill_(float("nan"))
        cache.values.fill_(float("nan"))
    expected = [[tiny.generate(prompt, 40)] for prompt in prompts[8:14]]
    assert tokens_of(llm.generate(prompts[8:14], SamplingParams(40))) == expected
    assert llm.metrics.swapped_out > 0
