"""The serving benchmark: all three servers answer alike, and a wrong or short answer is not measured but refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.serve.measure import Disagreement, Figures, check_equal, check_lengths, compare_servers
from bench.serve.profile import PARTS, profile, profile_stages
from bench.serve.report import profile_table, table
from bench.serve.servers import Run, serve_generate, serve_generate_batch, serve_ours
from bench.serve.workloads import Workload, make_workloads
from paged_ref.model.cpu.fused_layers import FusedLayer, fuse
from paged_ref.model.cpu.packed_weights import pack
from paged_ref.model.hf_model import NAME, PagedModel, paged_attention_forward
from tests.helpers.onednn import needs_onednn
from tests.helpers.tiny import ByteTokenizer, Tiny

PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10, 11, 12], [13]]
GREEDY = Workload("mixed", "four prompts", PROMPTS, [6, 3, 9, 1], seqs_at_once=2)
SAMPLED = Workload("samples", "two prompts", PROMPTS[:2], [5, 5], num_samples=2, seqs_at_once=4)


class ChatTokenizer(ByteTokenizer):
    """Messages as bytes, with a byte around each."""

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> list[int]:
        return [1, *"\n".join(message["content"] for message in messages).encode(), 2]


@pytest.fixture(scope="module")
def servers(tiny: Tiny) -> dict[str, Any]:
    dense = copy.deepcopy(tiny.dense)
    return {
        "ours": serve_ours(tiny.paged),
        "generate": serve_generate(dense),
        "generate_batch": serve_generate_batch(dense),
    }


@pytest.mark.parametrize("name", ["ours", "generate", "generate_batch"])
def test_a_server_gives_the_dense_models_tokens_and_their_times(
    name: str, servers: dict[str, Any], tiny: Tiny
) -> None:
    run = servers[name](GREEDY)
    expected = [tiny.generate(p, n) for p, n in zip(GREEDY.prompts, GREEDY.new_tokens, strict=True)]
    assert run.tokens == expected
    check_lengths(run, GREEDY, name)
    assert all(times == sorted(times) and 0 < times[0] <= times[-1] <= run.seconds for times in run.times)
    assert len(run.first) == 4
    assert len(run.gaps) == sum(n - 1 for n in GREEDY.new_tokens)
    assert run.cache_bytes > 0
    assert run.throughput == pytest.approx(19 / run.seconds)


@pytest.mark.parametrize("name", ["ours", "generate", "generate_batch"])
def test_a_server_draws_as_many_samples_as_were_asked_for(name: str, servers: dict[str, Any]) -> None:
    check_lengths(servers[name](SAMPLED), SAMPLED, name)


def test_a_short_answer_is_refused(servers: dict[str, Any]) -> None:
    run = servers["ours"](GREEDY)
    short = replace(run, tokens=[*run.tokens[:-1], []])
    with pytest.raises(Disagreement, match=r"mine returned \[6, 3, 9, 0\] tokens, not \[6, 3, 9, 1\]"):
        check_lengths(short, GREEDY, "mine")


def test_a_wrong_token_is_refused_and_a_close_one_counted(servers: dict[str, Any], tiny: Tiny) -> None:
    run = servers["ours"](GREEDY)
    assert check_equal(run, run, GREEDY, tiny.dense, ("a", "b")) == 0
    wrong = [list(row) for row in run.tokens]
    wrong[2][4] = (wrong[2][4] + 1) % 257
    with pytest.raises(
        Disagreement, match=r"request 2, new token 4: a chose \d+, b \d+, whose logits differ by"
    ):
        check_equal(run, replace(run, tokens=wrong), GREEDY, tiny.dense, ("a", "b"))

    def undecided(ids: torch.Tensor, **options: Any) -> Any:
        logits = torch.zeros(1, 1, 257)
        return type("Output", (), {"logits": logits})()

    undecided.device = "cpu"  # type: ignore[attr-defined]
    assert check_equal(run, replace(run, tokens=wrong), GREEDY, undecided, ("a", "b")) == 1


def test_the_servers_take_turns_and_the_median_counts() -> None:
    order: list[str] = []
    seconds = {"a": iter([9.0, 1.0, 4.0, 2.0]), "b": iter([9.0, 8.0, 8.0, 8.0])}  # the first is the warm-up

    def server(name: str) -> Any:
        def run(workload: Workload) -> Run:
            order.append(name)
            took = next(seconds[name])
            tokens = [[0] * n for n in workload.new_tokens]
            times = [[took * (i + 1) / n for i in range(n)] for n in workload.new_tokens]
            return Run(took, tokens, times, 2**20)

        return run

    said: list[str] = []
    figures = compare_servers({"a": server("a"), "b": server("b")}, GREEDY, "float32", 3, None, said.append)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert [f.throughput for f in figures] == [19 / 2, 19 / 8]
    assert figures[0].spread == (19 / 4, 19 / 1)
    assert figures[0].cache_mib == 1
    assert len(said) == 2 + 6
    lines = table(figures).splitlines()
    assert "4.00 x" in lines[-1]
    assert "x" not in lines[-2]


def test_workloads_are_what_they_say() -> None:
    loads = make_workloads(ChatTokenizer())
    assert list(loads) == ["uniform", "skewed", "shared prefix", "samples"]
    assert loads["uniform"].new_tokens == [64] * 16
    skewed = loads["skewed"].new_tokens
    assert min(skewed) >= 8
    assert max(skewed) == 256
    assert sorted(skewed)[len(skewed) // 2] < sum(skewed) / len(skewed), "a few long ones"
    shared = loads["shared prefix"].prompts
    assert len({tuple(p[:512]) for p in shared}) == 1
    for load in loads.values():
        assert len({tuple(p) for p in load.prompts}) == len(load.prompts)
        assert load.most_slots % 256 == 0
    assert loads["samples"].total_new_tokens == 4 * 4 * 64
    assert make_workloads(ChatTokenizer()) == loads


def test_a_profile_adds_up_and_leaves_the_model_as_it_was(tiny: Tiny) -> None:
    from transformers import AttentionInterface

    found = profile(tiny.paged, replace(GREEDY, seqs_at_once=4), "float32", steps=6)
    assert list(found.parts) == list(PARTS)
    assert found.num_seqs == 4
    assert all(milliseconds > 0 for milliseconds in found.parts.values())
    assert found.step == pytest.approx(sum(found.parts.values()))
    assert 0 < found.ours < 1
    assert found.limit > 0
    assert AttentionInterface()[NAME] is paged_attention_forward
    assert not any("forward" in vars(module) for module in tiny.paged.model.modules())
    assert found.how == "plain weights"
    assert "matmuls alone" in profile_table([found])


@needs_onednn
def test_the_profile_of_a_tuned_model_takes_the_tuning_back_step_by_step(tiny: Tiny) -> None:
    paged = PagedModel(copy.deepcopy(tiny.dense))
    fuse(paged.model), pack(paged.model)
    stages = profile_stages(paged, replace(GREEDY, seqs_at_once=4), "float32", steps=6)
    assert [stage.how for stage in stages] == ["plain weights", "packed weights", "fused layers"]
    for stage in stages:
        assert all(milliseconds > 0 for milliseconds in stage.parts.values())
        assert stage.limit > 0
    assert not any("forward" in vars(module) for module in paged.model.modules())
    assert all(
        torch.equal(a, b) for a, b in zip(paged.model.parameters(), tiny.dense.parameters(), strict=True)
    )
    assert type(FusedLayer.attend) is type(lambda: None) and FusedLayer.attend.__name__ == "attend"
    [plain] = profile_stages(paged, replace(GREEDY, seqs_at_once=4), "float32", steps=6)
    assert plain.how == "plain weights"


def test_the_command_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: Tiny
) -> None:
    from bench.serve import command as bench_serve
    from tests.helpers.command import run

    paged = copy.copy(tiny.paged)
    paged.tokenizer = ChatTokenizer()
    monkeypatch.setattr(bench_serve.PagedModel, "load", lambda *args, **options: paged)
    monkeypatch.setattr(bench_serve, "_load_dense", lambda *args: copy.deepcopy(tiny.dense))
    file = tmp_path / "serve.json"
    options = ["--quick", "--profile", "--dtype", "float32", "--output", str(file)]
    assert run(bench_serve, *options) == 0
    written = json.loads(file.read_text())
    assert [row["server"] for row in written["rows"]] == ["ours", "generate", "generate_batch"] * 4
    assert {f.name for f in Figures.__dataclass_fields__.values()} == set(written["rows"][0])
    assert written["torch"] == torch.__version__
    assert "shared prefix, float32" in capsys.readouterr().out
    with pytest.raises(ValueError, match="--rounds 0"):
        run(bench_serve, "--rounds", "0")
    with pytest.raises(ValueError, match="there is no folder"):
        run(bench_serve, "--output", str(tmp_path / "nowhere" / "x.json"))
    with pytest.raises(ValueError, match="dtype = 'float8'"):
        run(bench_serve, "--dtype", "float8")
