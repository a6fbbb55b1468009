"""What the engine hands back: finished requests, and single tokens as they come (chapter 7)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..scheduling.request import Request


@dataclass
class CompletionOutput:
    """One continuation.

    Attributes:
        index: which of a request's samples; of a beam search, its place, the best first.
        token_ids: what was generated, an end-of-sequence token and a stop string's tokens included.
        text: what the tokens read as, special tokens left out, cut before a stop string.
        finish_reason: "stop" (end-of-sequence token or stop string), "length", "abort"; None while it runs.
        cumulative_logprob: sum of the logarithms of the probabilities that the model gave the tokens.
    """

    index: int
    token_ids: list[int]
    text: str
    finish_reason: str | None
    cumulative_logprob: float


@dataclass
class RequestOutput:
    """A request: the prompt as the model saw it, and its continuations. Times are `time.perf_counter` seconds."""

    request_id: int
    prompt_token_ids: list[int]
    arrival_time: float
    first_token_time: float | None
    finish_time: float | None
    outputs: list[CompletionOutput] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request) -> RequestOutput:
        """The request as it stands; sequences that still run are included."""
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
        """Seconds from arrival to the first token (TTFT), None before it."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def time_per_output_token(self) -> float | None:
        """Mean seconds between tokens after the first (ITL) of the longest continuation; None where there is none."""
        intervals = max((len(output.token_ids) for output in self.outputs), default=0) - 1
        if self.first_token_time is None or self.finish_time is None or intervals < 1:
            return None
        return (self.finish_time - self.first_token_time) / intervals


@dataclass(frozen=True)
class StreamEvent:
    """One new token of one sequence.

    `prompt_index` says of which prompt, `index` of which sample. `text` may be empty (half of a character, or the
    beginning of a stop string) or read for several tokens at once. A beam search's tokens come when it has ended.
    """

    prompt_index: int
    index: int
    token_id: int
    text: str
    finish_reason: str | None
