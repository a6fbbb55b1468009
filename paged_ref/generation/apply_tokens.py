"""Apply a step's sampled tokens to the sequences, which grow, fork or end (chapter 7).

    a sequence that decodes          appends its token
    a prompt just computed, n = 3    forks into three, each appends its own token: the prompt's blocks are shared
    a beam                           waits for the other beams; then the best extensions replace all beams

A fork needs no block. The first write into a block that several sequences hold makes a copy (copy-on-write), when the
scheduler allocates the next slot.
"""

from __future__ import annotations

import time
from collections import abc

from ..blocks.block_table import BlockTable
from ..sampling.detokenizer import Detokenizer
from ..sampling.sampler import Draw, Wish
from ..scheduling.request import Request, Sequence
from ..scheduling.scheduler import Scheduler
from ..scheduling.step import Chunk


def wish_for(chunk: Chunk) -> Wish:
    """Return the draws to make after a chunk: one token; after a prompt, one per sample; for a beam, several."""
    request, sequence = chunk.request, chunk.sequence
    if request.beam_search is not None:
        return Wish(request.sampling, request.beam_search.num_candidates)
    to_come = request.width - len(request.sequences)  # samples that do not exist yet
    return Wish(request.sampling, 1 + to_come, request.seed + sequence.index, len(sequence.token_ids))


def extend(
    scheduler: Scheduler, sampled: abc.Sequence[Chunk], choices: abc.Sequence[abc.Sequence[Draw]]
) -> int:
    """Give the chunks' sequences the tokens chosen for them; return the number of generated tokens."""
    now = time.perf_counter()
    num_tokens = 0
    for chunk, draws in zip(sampled, choices, strict=True):
        request, sequence = chunk.request, chunk.sequence
        request.first_token_time = request.first_token_time or now
        if request.beam_search is not None:
            request.beam_search.add(sequence, draws)
            num_tokens += _advance_beams(scheduler, request)
        else:
            forks = [scheduler.fork(request, sequence, i) for i in range(1, len(draws))]
            for one, draw in zip([sequence, *forks], draws, strict=True):
                _take(scheduler, request, one, draw)
            num_tokens += len(draws)
        if not request.sequences:
            request.finish_time = now
    return num_tokens


def _take(scheduler: Scheduler, request: Request, sequence: Sequence, draw: Draw) -> None:
    """Append a sequence's next token, and end the sequence if that token is its last."""
    sequence.token_ids.append(draw.token_id)
    sequence.cumulative_logprob += draw.logprob
    detokenizer = sequence.detokenizer
    text = detokenizer.add(draw.token_id) if detokenizer else ""
    ended = draw.token_id in request.end_token_ids
    stopped = detokenizer is not None and detokenizer.stopped
    if ended or stopped or sequence.num_new_tokens >= request.max_new_tokens:
        if detokenizer is not None:
            text += detokenizer.finish()  # the text held back may complete a stop string
            stopped = detokenizer.stopped
        scheduler.finish(request, sequence, "stop" if ended or stopped else "length")
    _emit(request, sequence, draw.token_id, text, sequence.finish_reason)


def _advance_beams(scheduler: Scheduler, request: Request) -> int:
    """Replace the beams by their best extensions once all candidates are known; at the end, by the hypotheses."""
    search = request.beam_search
    extensions = search.advance(request.sequences) if search is not None else None
    if search is None or extensions is None:
        return 0
    if not extensions:
        scheduler.conclude(request, _hypotheses(request))
        return len(search.hypotheses)
    beams: list[Sequence] = []
    for extension in extensions:  # fork all before any grows
        beams.append(extension.beam.fork(0) if extension.beam in beams else extension.beam)
    scheduler.replace(request, beams)
    for i, (beam, extension) in enumerate(zip(beams, extensions, strict=True)):
        beam.index = i
        beam.token_ids.append(extension.token_id)
        beam.cumulative_logprob = extension.score
    return len(beams)


def _hypotheses(request: Request) -> list[Sequence]:
    """Return a finished search's results as sequences, the best first. They need no blocks."""
    beam = request.sequences[0]
    finished = []
    for i, hypothesis in enumerate(request.beam_search.hypotheses if request.beam_search else []):
        text = beam.detokenizer.fork() if beam.detokenizer else Detokenizer(None)  # beams never feed theirs
        tokens = [*request.prompt_token_ids, *hypothesis.new_token_ids]
        sequence = Sequence(
            tokens, len(request.prompt_token_ids), BlockTable(beam.table.pool), i, detokenizer=text
        )
        sequence.cumulative_logprob, sequence.finish_reason = hypothesis.score, hypothesis.finish_reason
        *earlier, last = hypothesis.new_token_ids
        for token in earlier:
            _emit(request, sequence, token, text.add(token), None)
        _emit(request, sequence, last, text.add(last) + text.finish(), hypothesis.finish_reason)
        finished.append(sequence)
    return finished


def _emit(request: Request, sequence: Sequence, token_id: int, text: str, finish_reason: str | None) -> None:
    if request.events is not None:
        request.events.append((sequence.index, token_id, text, finish_reason))
