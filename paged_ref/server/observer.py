"""The engine's state as frames for the page: which request holds which block, and the current metrics.

A frame is one JSON text, made in the engine thread after a step. It costs time in proportion to the held blocks, so
the observer limits itself: a frame that took c seconds of processor time is followed by none for c / `SHARE` seconds.
Frames thus take at most that share of the engine's time, whatever the pool's size. Nothing is made while nobody
watches. Each viewer sees the newest frame; a slow viewer misses some and never makes a queue.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from ..generation.llm import LLM
from ..scheduling.request import Request, Status
from ..scheduling.step import Step
from .engine_thread import EngineThread

SHARE = 0.015
LEAST_GAP = 0.05  # seconds: 20 frames per second are enough for the eye
TEXT_LENGTH = 200


class Observer:
    """Makes frames in the engine thread and hands them to viewers in the event loop.

    Args:
        llm: the engine.
        show_text: put the ends of prompts and outputs into frames.
    """

    def __init__(self, llm: LLM, show_text: bool = False) -> None:
        self.llm, self.show_text = llm, show_text
        self.engine: EngineThread | None = None
        self.viewers: set[Viewer] = set()
        self.frames = 0
        self.seconds = 0.0  # spent on frames
        self.latest: str | None = None
        self._next = 0.0
        self._happened: deque[dict[str, Any]] = deque(maxlen=64)
        self._serial = 0

    def watch(self, step: Step | None) -> None:
        """Note what a step did, and make a frame if one is due. Called in the engine thread."""
        if not self.viewers:
            return
        if step is not None:
            for kind, requests in (("admitted", step.admitted), ("preempted", step.preempted)):
                for request in requests:
                    self._note(kind, request)
            for request in dict.fromkeys(chunk.request for chunk in step.chunks):
                if not request.sequences:
                    self._note("finished", request)
        now, started = time.monotonic(), time.thread_time()
        teaching = self.engine is not None and (self.engine.paused or self.engine.delay > 0.2)
        idle = not self.llm.scheduler.has_work
        if now < self._next and not teaching and not idle:
            return
        text = "data: " + json.dumps(self.frame(), separators=(",", ":")) + "\n\n"
        self.latest = text
        for viewer in list(self.viewers):
            viewer.offer(text)
        cost = time.thread_time() - started
        self.frames += 1
        self.seconds += cost
        self._next = now + max(LEAST_GAP, cost / SHARE)

    def _note(self, kind: str, request: Request) -> None:
        self._serial += 1
        self._happened.append({"serial": self._serial, "kind": kind, "request": request.request_id})

    def frame(self) -> dict[str, Any]:
        """Return the engine's state: metrics, live requests with their tables, and runs of cached free blocks."""
        scheduler, pool = self.llm.scheduler, self.llm.pool
        engine = self.engine
        return {
            "time": time.time(),
            "block_size": pool.block_size,
            "metrics": self.llm.metrics.snapshot(),
            "paused": bool(engine and engine.paused),
            "delay": engine.delay if engine else 0,
            "max_num_seqs": scheduler.max_num_seqs,
            "requests": [self._request(r) for r in [*scheduler.running, *scheduler.waiting]],
            "cached": self._cached_runs(),
            "happened": list(self._happened),
        }

    def _request(self, request: Request) -> dict[str, Any]:
        on_host = request.status is Status.SWAPPED
        seen = {
            "id": request.request_id,
            "status": request.status.value,
            "prompt": len(request.prompt_token_ids),
            "most": request.max_new_tokens,
            "width": request.width,
            "sequences": [
                {
                    "tokens": len(s.token_ids),
                    "computed": s.num_computed_tokens,
                    "blocks": [] if on_host else s.table.blocks,
                    "host": len(s.table.blocks) if on_host else 0,
                }
                for s in request.sequences
            ],
        }
        if self.show_text and request.sequences and self.llm.model.tokenizer is not None:
            tokens = request.sequences[0].token_ids[-40:]
            seen["text"] = str(self.llm.model.tokenizer.decode(tokens, skip_special_tokens=True))[
                -TEXT_LENGTH:
            ]
        return seen

    def _cached_runs(self) -> list[int]:
        """Return the free blocks with cached contents as first, length, first, length and so on."""
        pool = self.llm.pool
        runs: list[int] = []
        if pool.prefix_cache is None:
            return []
        last = -2
        for block in sorted(pool.prefix_cache.blocks()):
            if pool.ref_count(block):
                continue
            if block == last + 1:
                runs[-1] += 1
            else:
                runs += [block, 1]
            last = block
        return runs


class Viewer:
    """One open page: the newest frame that it has not been sent yet."""

    def __init__(self, observer: Observer, loop: asyncio.AbstractEventLoop) -> None:
        self.observer, self.loop = observer, loop
        self.newest: str | None = observer.latest
        self.arrived = asyncio.Event()
        if self.newest is not None:
            self.arrived.set()
        self.closed = False

    def offer(self, text: str) -> None:
        """Replace the unsent frame. Called in the engine thread."""
        self.newest = text
        try:
            self.loop.call_soon_threadsafe(self.arrived.set)
        except RuntimeError:  # the loop has closed
            self.observer.viewers.discard(self)

    def close(self) -> None:
        """End the viewer's stream. Called in the event loop."""
        self.closed = True
        self.arrived.set()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield frames as server-sent events, and a comment every ten seconds so that a dead connection shows."""
        while not self.closed:
            try:
                await asyncio.wait_for(self.arrived.wait(), 10)
            except TimeoutError:
                yield b": still here\n\n"
            self.arrived.clear()
            text, self.newest = self.newest, None
            if text is not None and not self.closed:
                yield text.encode()
