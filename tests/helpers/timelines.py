"""Five requests on the real scheduler, without a model, for the tests of the views."""

from __future__ import annotations

from collections import deque

from coursekit.views.timeline import Timeline
from paged_ref import BlockPool, BlockTable, SamplingParams
from paged_ref.scheduling.request import Request, Sequence
from paged_ref.scheduling.scheduler import Scheduler

# (arrival step, prompt tokens, new tokens)
ARRIVALS = [(0, 6, 14), (0, 9, 9), (2, 5, 12), (4, 12, 6), (6, 3, 8)]


def request_of(number: int, prompt: int, new: int, pool: BlockPool) -> Request:
    sequence = Sequence([number] * prompt, prompt, BlockTable(pool))
    return Request(number, [number] * prompt, SamplingParams(max_tokens=new), new, [sequence])


def serve(scheduler: Scheduler, seconds: float = 1.0) -> Timeline:
    timeline, coming = Timeline(scheduler), deque(enumerate(ARRIVALS))
    while coming or scheduler.has_work:
        while coming and coming[0][1][0] <= len(timeline.moments):
            number, (_, prompt, new) = coming.popleft()
            scheduler.add(request_of(number, prompt, new, scheduler.pool))
        step = scheduler.schedule()
        scheduler.complete(step)
        for chunk in step.chunks:
            if chunk.samples:
                chunk.sequence.token_ids.append(0)
                if chunk.sequence.num_new_tokens == chunk.request.max_new_tokens:
                    scheduler.finish(chunk.request, chunk.sequence, "length")
        timeline.note(step, seconds)
    return timeline


def tight(host_blocks: int = 0) -> Timeline:
    host = BlockPool(host_blocks, 4) if host_blocks else None
    return serve(Scheduler(BlockPool(9, 4), 8, 12, 0.0, host), seconds=0.5)
