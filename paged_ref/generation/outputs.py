"""The engine's results: finished requests, and single tokens as they are generated (chapter 7)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..scheduling.request import Request


@dataclass
class CompletionOutput:
    """One continuation.

    Attributes:
        index: index of the sample within the request; for beam search, the rank, with the best at 0.
        token_ids: the generated tokens, including an end-of-sequence token and a stop string's tokens.
        text: the decoded tokens, without special tokens, cut before a stop string.
        finish_reason: "stop" (end-of-sequence token or stop string), "length", "abort"; None while it runs.
        cumulative_logprob: sum of the generated tokens' log-probabilities in the model's own distribution.
    """

    index: int
    token_ids: list[int]
    text: str
    finish_reason: str | None
    cumulative_logprob: float


@dataclass
class RequestOutput:
    """A request's prompt, as token ids, and its continuations. Times are in seconds, by `time.perf_counter`."""

    request_id: int
    prompt_token_ids: list[int]
    arrival_time: float
    first_token_time: float | None
    finish_time: float | None
    outputs: list[CompletionOutput] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request) -> RequestOutput:
        """Return the request's output so far, including sequences that still run."""
        times = (request.arrival_time, request.first_token_time, request.finish_time)
        output = cls(request.request_id, request.prompt_token_ids, *times)
        for sequence in sorted([*request.finished, *request.sequences], key=lambda s: s.index):
            text = sequence.detokenizer.text if sequence.detokenizer else ""
            output.outputs.append(
                CompletionOutput(
                    sequence.index,
                    sequence.output_token_ids,
                    text,
                    sequence.finish_reason,
                    sequence.cumulative_logprob,
                )
            )
        return output

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token (TTFT); None before that token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def time_per_output_token(self) -> float | None:
        """Mean seconds between tokens after the first (TPOT) of the longest continuation; None if not known."""
        intervals = max((len(output.token_ids) for output in self.outputs), default=0) - 1
        if self.first_token_time is None or self.finish_time is None or intervals < 1:
            return None
        return (self.finish_time - self.first_token_time) / intervals


@dataclass(frozen=True)
class StreamEvent:
    """One new token of one sequence.

    `prompt_index` is the index of the prompt, `index` that of the sample. `text` may be empty (half of a character, or
    the beginning of a stop string) or cover several tokens. A beam search's tokens are yielded when it has ended.
    """

    prompt_index: int
    index: int
    token_id: int
    text: str
    finish_reason: str | None
