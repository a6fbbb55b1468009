"""One engine used from several threads, steps that get nowhere, and a prefix cache that is reset."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from paged_ref import LLM, SamplingParams
from paged_ref.model.hf_model import PagedModel
from paged_ref.scheduling.step import Step

GREEDY = SamplingParams(max_tokens=12)


def tokens_of(outputs: Any) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls in threads that start together; return what they return, or raise what they raise."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait(30)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        futures = [threads.submit(run, call) for call in calls]
        return [future.result(timeout=120) for future in futures]


@pytest.mark.parametrize("options", [{}, {"num_blocks": 16}, {"num_blocks": 16, "preemption": "swap"}])
def test_threads_generate_on_one_engine(
    tiny: Any, tiny_llm: Any, prompts: Any, options: dict[str, Any]
) -> None:
    llm = tiny_llm(**options)
    parts = [prompts[i::4] for i in range(4)]
    found = at_once(*(lambda part=part: tokens_of(llm.generate(part, GREEDY)) for part in parts))
    assert found == [[tiny.generate(prompt, 12) for prompt in part] for part in parts]
    assert llm.pool.num_used == 0
    llm.scheduler.check()


def test_threads_stream_step_and_abort_on_one_engine(tiny: Any, tiny_llm: Any, prompts: Any) -> None:
    llm = tiny_llm(num_blocks=40)

    def stream() -> list[int]:
        return [event.token_id for event in llm.stream(prompts[8], GREEDY)]

    def cut_short() -> int:
        events = llm.stream(prompts[9], SamplingParams(max_tokens=200))
        first = next(events).token_id
        events.close()
        return first

    def add_and_abort() -> list[list[int]]:
        found = []
        for i in range(6):
            request = llm.add_request(prompts[10 + i], GREEDY)
            if i % 2:
                llm.step()
                llm.abort(request)
            else:
                while request.sequences:
                    llm.step()
                found.append(llm.output(request).outputs[0].token_ids)
        return found

    streamed, first, added = at_once(stream, cut_short, add_and_abort)
    assert streamed == tiny.generate(prompts[8], 12)
    assert first == tiny.generate(prompts[9], 1)[0]
    assert added == [tiny.generate(prompts[10 + i], 12) for i in (0, 2, 4)]
    assert (llm.pool.num_used, llm.scheduler.has_work) == (0, False)


def test_a_damaged_request_fails_in_its_own_thread_only(
    tiny: Any, tiny_llm: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = tiny_llm()
    forward = llm.model.forward

    def damage(batch: Any, *rest: Any) -> torch.Tensor:
        logits = forward(batch, *rest)
        rows = torch.from_numpy(batch.token_ids[batch.sample_rows] == 77)
        return logits.masked_fill(rows[:, None], float("nan"))

    monkeypatch.setattr(llm.model, "forward", damage)

    def bad() -> str:
        with pytest.raises(FloatingPointError, match=r"requests \[\d+\] were aborted") as caught:
            llm.generate([[5, 77]], GREEDY)
        return str(caught.value)

    good = [prompt for prompt in prompts if 77 not in tiny.generate(prompt, 12) and prompt[-1] != 77][:6]
    _, *found = at_once(
        bad, *(lambda prompt=prompt: tokens_of(llm.generate([prompt], GREEDY)) for prompt in good)
    )
    assert found == [[tiny.generate(prompt, 12)] for prompt in good]


def test_a_step_that_computes_nothing_while_requests_wait_is_an_error(
    tiny_llm: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = tiny_llm()
    monkeypatch.setattr(llm.scheduler, "schedule", Step)
    with pytest.raises(
        RuntimeError, match="computed nothing, but 2 requests wait and 0 run, with 256 of 256 blocks"
    ):
        llm.generate(prompts[:2], GREEDY)
    with pytest.raises(RuntimeError, match="computed nothing"):
        list(llm.stream(prompts[0], GREEDY))
    assert not llm.step().chunks, "an engine without work may step"


def test_requests_that_the_scheduler_lost_are_an_error(
    tiny_llm: Any, prompts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = tiny_llm()
    monkeypatch.setattr(llm.scheduler, "add", lambda request: None)
    with pytest.raises(RuntimeError, match="the scheduler does not have them"):
        llm.generate(prompts[:2], GREEDY)


# ---- weights changed in place


@pytest.fixture
def changeable(tiny: Any) -> Any:
    """A model whose weights a test may change, and a function that says what the dense model generates."""
    from copy import deepcopy

    dense = deepcopy(tiny.dense)
    paged = PagedModel(deepcopy(dense), tiny.paged.tokenizer)

    def change() -> None:
        for model in (dense, paged.model):
            with torch.no_grad():
                model.model.layers[0].self_attn.v_proj.weight.mul_(-1.0)

    def generate(prompt: list[int], num_tokens: int) -> list[int]:
        made = dense.generate(
            torch.tensor([prompt]), max_new_tokens=num_tokens, do_sample=False, pad_token_id=0
        )
        return list(made[0, len(prompt) :].tolist())

    return paged, change, generate


def test_after_a_change_of_weights_the_reset_cache_serves_nothing_old(changeable: Any, prompts: Any) -> None:
    paged, change, generate = changeable
    llm, prompt = LLM(paged, num_blocks=64, block_size=8), prompts[15]
    old = tokens_of(llm.generate([prompt], GREEDY))[0]
    change()
    new = generate(prompt, 12)
    assert new != old
    assert tokens_of(llm.generate([prompt], GREEDY))[0] != new, (
        "without a reset the old keys and values are found"
    )
    cached = len(llm.pool.prefix_cache)
    assert llm.reset_prefix_cache() == cached > 0
    assert tokens_of(llm.generate([prompt], GREEDY))[0] == new
    llm.scheduler.check()
    assert LLM(paged, num_blocks=8, enable_prefix_caching=False).reset_prefix_cache() == 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_reset_recomputes_what_runs_or_is_swapped_out(
    changeable: Any, prompts: Any, preemption: str
) -> None:
    paged, change, generate = changeable
    llm = LLM(paged, num_blocks=14, block_size=8, preemption=preemption)
    requests = [llm.add_request(prompts[i], SamplingParams(max_tokens=30)) for i in (13, 14)]
    while not (llm.metrics.preemptions or requests[0].finished):
        llm.step()
    assert llm.metrics.preemptions > 0
    change()
    llm.reset_prefix_cache()
    assert llm.pool.num_used == 0
    llm.scheduler.check()
    made = {request: list(request.sequences[0].token_ids) for request in requests}
    while llm.scheduler.has_work:
        llm.step()
        llm.scheduler.check()
    for request, tokens in made.items():
        rest = 30 - (len(tokens) - len(request.prompt_token_ids))
        assert llm.output(request).outputs[0].token_ids[-rest:] == generate(tokens, rest)
