"""What goes wrong in front of the engine, and that nothing is left behind: no block held, no request waiting."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch

from coursekit import ROOT
from paged_ref import LLM, SamplingParams

TEN = SamplingParams(max_tokens=10)


def tokens_of(outputs: Any) -> list[list[int]]:
    return [completion.token_ids for output in outputs for completion in output.outputs]


def check_idle(llm: LLM) -> None:
    llm.scheduler.check()
    assert not llm.scheduler.has_work
    assert llm.pool.num_used == 0
    if llm.scheduler.manager.host_pool is not None:
        assert llm.scheduler.manager.host_pool.num_used == 0


# ---- bad prompts and arguments


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([], TEN, "the prompt is empty"),
        ("", TEN, "the prompt is empty"),
        ([3, 257], TEN, "token 1 of the prompt is 257: the vocabulary has ids 0 to 256"),
        ([3, -1], TEN, "token 1 of the prompt is -1"),
        ([3, 1.5], TEN, "token 1 of the prompt is 1.5"),
        ([3, True], TEN, "token 1 of the prompt is True"),
        ("\ud800", TEN, "not text that can be encoded"),
        (None, TEN, "not a NoneType"),
        (torch.tensor([1, 2]), TEN, "not a Tensor"),
        ([{"role": "user"}], TEN, "chat message 0"),
        ([{"role": "user", "content": "hello"}], TEN, "no chat template"),
        ([1] * 2048, TEN, "2048 tokens, but the model has 2048 positions"),
        ([1] * 1500, SamplingParams(64), "needs up to 196 blocks of 8 tokens, but the pool has 64"),
        ([1] * 100, SamplingParams(64, n=7), "in 7 sequence(s) needs up to 75 blocks"),
        ([1], SamplingParams(4, n=9), "the request has 9 sequences, but max_num_seqs = 8"),
        ([1], SamplingParams(4, beam_width=9), "the request has 9 sequences, but max_num_seqs = 8"),
    ],
)
def test_a_bad_prompt_is_named_and_nothing_runs(
    tiny_llm: Any, prompt: Any, sampling: Any, message: str
) -> None:
    llm = tiny_llm(num_blocks=64, max_num_seqs=8)
    for run in (llm.generate, llm.stream):
        with pytest.raises(ValueError) as error:
            run([[1, 2, 3], prompt], [TEN, sampling])
        assert str(error.value).startswith("prompt 1: ") and message in str(error.value)
        check_idle(llm)
    assert llm.metrics.steps == 0


def test_the_largest_prompt_that_fits_runs(tiny: Any, tiny_llm: Any) -> None:
    llm = tiny_llm(num_blocks=5, block_size=8)
    prompt = list(range(31))
    assert tokens_of(llm.generate([prompt], TEN)) == [
        tiny.generate(prompt, 10)
    ]  # 40 slots; the 41st token needs none
    with pytest.raises(ValueError, match="up to 6 blocks"):
        llm.generate([[*prompt, 1]], TEN)


def test_the_models_positions_limit_new_tokens(tiny_llm: Any) -> None:
    llm = tiny_llm(num_blocks=600)
    (output,) = llm.generate([[1] * 2045], TEN)
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (3, "length")


def test_sampling_for_each_prompt_must_match_in_number(tiny_llm: Any) -> None:
    with pytest.raises(ValueError, match="2 SamplingParams for 3 prompts"):
        tiny_llm().generate([[1], [2], [3]], [TEN, TEN])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 0}, "num_blocks = 0"),
        ({"block_size": 0}, "block_size = 0"),
        ({"num_blocks": None, "block_size": 0}, "block_size = 0"),
        ({"num_blocks": None, "memory_fraction": 1.5}, "memory_fraction = 1.5"),
        ({"num_blocks": 2.0}, "num_blocks = 2.0"),
        ({"preemption": "swop"}, "preemption = 'swop'"),
        ({"backend": "cuda"}, "unknown backend 'cuda'"),
        ({"preemption": "swap", "num_host_blocks": 0}, "num_host_blocks = 0"),
        ({"watermark": 1.0}, "watermark = 1.0"),
        ({"max_num_seqs": 0}, "max_num_seqs = 0"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 63}, "max_num_batched_tokens = 63"),
    ],
)
def test_a_bad_argument_is_named(tiny_llm: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        tiny_llm(**options)
    assert message in str(error.value)


def test_more_memory_than_there_is(tiny_llm: Any) -> None:
    with pytest.raises(MemoryError, match=r"KV cache of 500000 blocks of 4096 tokens \(.* GB\)"):
        tiny_llm(num_blocks=500_000, block_size=4096)


def test_a_pool_of_one_block(tiny: Any, tiny_llm: Any) -> None:
    llm = tiny_llm(num_blocks=1, block_size=8)
    assert tokens_of(llm.generate([[5, 6, 7]] * 3, SamplingParams(6))) == [tiny.generate([5, 6, 7], 6)] * 3
    with pytest.raises(ValueError, match="needs up to 2 blocks of 8 tokens, but the pool has 1"):
        llm.generate([[5, 6, 7]], SamplingParams(7))


# ---- interrupted, aborted, broken


def test_ctrl_c_at_any_moment_leaves_a_working_engine() -> None:
    script = ROOT / "tests/helpers/interrupts.py"
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=ROOT,
        env={**_environment(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    interrupts = int(done.stdout.split()[0])
    assert interrupts > 100


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "OMP_NUM_THREADS": "1"}


def make_life(tiny_llm: Any, preemption: str) -> LLM:
    """An engine so small that a request is chunked, forked, preempted and resumed in its life."""
    return tiny_llm(
        num_blocks=16,
        block_size=4,
        preemption=preemption,
        max_num_seqs=6,
        max_num_batched_tokens=12,
        watermark=0.0,
    )


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("beam", [False, True])
def test_abort_at_every_step_of_a_life(
    tiny: Any, tiny_llm: Any, prompts: Any, preemption: str, beam: bool
) -> None:
    sampling = SamplingParams(12, beam_width=2) if beam else SamplingParams(12, n=2)
    older, victim = prompts[6], prompts[8]
    expected = tiny.generate(older, 28)
    states = set()
    step = 0
    while True:
        llm = make_life(tiny_llm, preemption)
        first = llm.add_request(older, SamplingParams(28))
        request = llm.add_request(victim, sampling)
        for _ in range(step):
            llm.step()
        if not request.sequences:
            break
        computed = request.sequences[0].num_computed_tokens
        half = 0 < computed < len(victim)
        states.add((request.status.value, len(request.sequences), half))
        llm.abort(request)
        llm.abort(request)  # harmless
        llm.scheduler.check()
        reasons = {completion.finish_reason for completion in llm.output(request).outputs}
        assert "abort" in reasons and None not in reasons
        while first.sequences:
            llm.step()
            llm.scheduler.check()
        assert first.finished[0].output_token_ids == expected
        check_idle(llm)
        step += 1
    assert {("waiting", 1, False), ("running", 1, True), ("running", 2, False)} <= states
    assert ("swapped" if preemption == "swap" else "waiting", 2, False) in states, states


def test_a_consumer_of_a_stream_that_raises(tiny_llm: Any, prompts: Any) -> None:
    llm = tiny_llm()
    expected = tokens_of(llm.generate(prompts[:3], TEN))

    def consume(stop_at: int) -> None:
        for i, _ in enumerate(llm.stream(prompts, SamplingParams(40, n=2))):
            if i == stop_at:
                raise RuntimeError("the consumer fails")

    for stop_at in (0, 1, 30, 100):
        with pytest.raises(RuntimeError, match="the consumer fails"):
            consume(stop_at)
        check_idle(llm)
    assert tokens_of(llm.generate(prompts[:3], TEN)) == expected


def test_a_stream_that_nobody_reads_leaves_nothing(tiny_llm: Any, prompts: Any) -> None:
    llm = tiny_llm()
    stream = llm.stream(prompts, TEN)
    assert llm.scheduler.has_work
    del stream
    check_idle(llm)
    stream = llm.stream(prompts, TEN)
    next(stream)
    stream.close()
    check_idle(llm)


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_an_error_in_the_model_loses_no_token(
    tiny: Any, tiny_llm: Any, prompts: Any, preemption: str
) -> None:
    """Steps fail at random; whoever calls `step` again gets all requests computed in the end."""
    calls = 0

    def fail(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 4 == 3:
            raise RuntimeError("out of order")

    llm = make_life(tiny_llm, preemption)
    requests = [llm.add_request(prompt, SamplingParams(10)) for prompt in prompts[:10]]
    beams = llm.add_request(prompts[4], SamplingParams(8, beam_width=3))
    hook = tiny.paged.model.model.layers[1].mlp.register_forward_pre_hook(fail)
    failures = 0
    try:
        while llm.scheduler.has_work:
            try:
                llm.step()
            except RuntimeError:
                failures += 1
            llm.scheduler.check()
    finally:
        hook.remove()
    assert failures > 5
    expected = [tiny.generate(prompt, 10) for prompt in prompts[:10]]
    assert [request.finished[0].output_token_ids for request in requests] == expected
    assert [beam.output_token_ids for beam in beams.finished] == tiny.beams(prompts[4], 8, 3, None)[0]
    check_idle(llm)


def test_nan_is_reported_and_aborts_only_its_request(tiny: Any, tiny_llm: Any, prompts: Any) -> None:
    """One prompt's first chunk, which gives no logits yet, is damaged; its blocks must not be found again."""
    bad_token = 255
    good, bad = prompts[9], [bad_token] * 40

    def damage(_: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        return output.masked_fill((inputs[0] == bad_token)[..., None], math.nan)

    llm = tiny_llm(max_num_batched_tokens=24, max_num_seqs=8)
    first = llm.add_request(good, TEN)
    culprit = llm.add_request(bad, TEN)
    hook = tiny.paged.model.model.embed_tokens.register_forward_hook(damage)
    try:
        with pytest.raises(FloatingPointError, match=rf"requests \[{culprit.request_id}\] were aborted"):
            for _ in range(3):
                llm.step()
    finally:
        hook.remove()
    llm.scheduler.check()
    assert llm.output(culprit).outputs[0].finish_reason == "abort"
    while first.sequences:
        llm.step()
    assert first.finished[0].output_token_ids == tiny.generate(good, 10)
    assert tokens_of(llm.generate([bad], TEN)) == [tiny.generate(bad, 10)]  # not from the damaged blocks
    check_idle(llm)


def test_generate_after_nan_works(tiny: Any, tiny_llm: Any, prompts: Any) -> None:
    llm = tiny_llm()
    head = tiny.paged.model.lm_head
    hook = head.register_forward_hook(lambda *args: torch.full_like(args[-1], math.nan))
    try:
        with pytest.raises(FloatingPointError, match="NaN"):
            llm.generate(prompts, TEN)
    finally:
        hook.remove()
    check_idle(llm)
    assert tokens_of(llm.generate(prompts[:4], TEN)) == [tiny.generate(prompt, 10) for prompt in prompts[:4]]


def test_interrupts_are_held_back_and_delivered() -> None:
    import signal

    from paged_ref.generation.interrupts import uninterrupted

    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGINT)
        done.append("finished first")
    assert done == ["finished first"]
    with uninterrupted():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
