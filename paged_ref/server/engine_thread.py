"""The one thread that runs the engine.

    event loop                            engine thread
    submit, cancel  ---- commands ---->   take commands, LLM.step, watch
    Job.take        <--- news --------    one call_soon_threadsafe per step, for all jobs

Only this thread touches the `LLM`, so no lock is held while the network waits. News of a job collects in its buffer;
a client that leaves `MOST_UNREAD` tokens unread is dropped, so a slow reader never holds the engine or its memory.

Invariants: every submitted job ends with exactly one `End`; when it ends, its request holds no block.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from ..generation.llm import LLM
from ..sampling.params import SamplingParams
from ..scheduling.request import Request
from ..scheduling.step import Step
from .errors import ApiError

log = logging.getLogger("paged_ref")
MOST_UNREAD = 1024
T = TypeVar("T")


class Token(NamedTuple):
    """A new token of the job's sequence `sample`, with the text that it completes."""

    sample: int
    token_id: int
    text: str
    finish_reason: str | None


class End(NamedTuple):
    """The job's end; `error` is None if all its sequences finished."""

    error: ApiError | None = None


@dataclass(eq=False)
class Job:
    """One prompt on its way through the engine. `request` is the engine thread's; all else is the event loop's."""

    token_ids: list[int]
    sampling: SamplingParams
    loop: asyncio.AbstractEventLoop
    request: Request | None = None
    news: deque[Token | End] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    started: float = field(default_factory=time.monotonic)

    async def take(self) -> list[Token | End]:
        """Wait for news and return all of it."""
        await self.arrived.wait()
        self.arrived.clear()
        taken = list(self.news)
        self.news.clear()
        return taken


class EngineThread:
    """Runs an `LLM` for many clients.

    Args:
        llm: the engine; nothing else may use it meanwhile.
        max_queue: jobs that may wait beyond the `max_num_seqs` that can run. More are refused with 429.
        watch: called in the engine thread after each step, and with None when something else changed.

    Attributes:
        live: jobs that have not ended.
        paused, delay: hold all steps; seconds to wait between two steps.
    """

    def __init__(
        self, llm: LLM, max_queue: int = 256, watch: Callable[[Step | None], None] | None = None
    ) -> None:
        self.llm = llm
        self.capacity = llm.scheduler.max_num_seqs + max_queue
        self.watch = watch or (lambda step: None)
        self.live: set[Job] = set()
        self.reserved = 0
        self.paused, self.delay = False, 0.0
        self.failed: str | None = None
        self._seconds = 1.0  # moving average of a job's time, for Retry-After
        self._by_request: dict[Request, Job] = {}
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._single_steps = 0
        self._stopping = False
        self._over = False  # the thread takes no more commands
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # ---- called in the event loop

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End all jobs and the thread; returns when both have ended."""
        self._commands.put(None)
        self._thread.join()

    def reserve(self, jobs: int, held: int = 0) -> None:
        """Reserve room for so many jobs, `held` of which have it already. Give it back with `release`.

        Raises:
            ApiError: 429 if the queue is full, 503 if the engine has failed, 400 if so many jobs never fit.
        """
        if self.failed:
            raise ApiError(503, f"the engine has stopped: {self.failed}", code="engine_stopped")
        if jobs > self.capacity:
            raise ApiError(
                400, f"{jobs} prompts in one request; this server takes at most {self.capacity}", "prompt"
            )
        if self.reserved + jobs - held > self.capacity:
            raise ApiError(
                429,
                f"the queue is full: {self.reserved} requests wait or run",
                code="queue_full",
                retry_after=max(1, min(60, round(self._seconds))),
            )
        self.reserved += jobs - held

    def release(self, jobs: int) -> None:
        """Give reserved room back."""
        self.reserved -= jobs

    def submit(self, token_ids: list[int], sampling: SamplingParams) -> Job:
        """Queue a prompt and return its job."""
        job = Job(token_ids, sampling, asyncio.get_running_loop())
        self.live.add(job)
        self._commands.put(lambda: self._add(job))
        if self._over:  # nobody may obey this command any more
            self._receive([(job, [self._farewell()])])
        return job

    def _farewell(self) -> End:
        """Return the end of every job that the engine leaves unfinished."""
        if self.failed:
            return End(ApiError(503, f"the engine has stopped: {self.failed}", code="engine_stopped"))
        return End(ApiError(503, "the server is shutting down", code="shutting_down"))

    def cancel(self, job: Job) -> None:
        """End a job whose client has left; its blocks are freed before the next step. Harmless if it has ended."""
        if not job.ended:
            self._end(job)
            self._commands.put(lambda: self._abort(job))

    def control(self, paused: bool, delay: float, steps: int = 0) -> None:
        """Pause or continue, set the seconds between steps, and take so many single steps while paused."""

        def apply() -> None:
            self.paused, self.delay = paused, delay
            self._single_steps = self._single_steps + steps if paused else 0
            self.watch(None)

        self._commands.put(apply)

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function in the engine thread, between two steps, and return its result.

        Raises:
            ApiError: 503, the engine has stopped.
        """
        if self.failed or self._stopping:
            raise ApiError(503, f"the engine has stopped: {self.failed}", code="engine_stopped")
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def settle(value: T) -> None:
            if not result.done():  # its client may have left
                result.set_result(value)

        def run() -> None:
            value = function()
            loop.call_soon_threadsafe(settle, value)

        self._commands.put(run)
        return await asyncio.wait_for(result, 30)

    def refresh(self) -> None:
        """Call `watch` soon."""
        self._commands.put(lambda: self.watch(None))

    def _receive(self, news: list[tuple[Job, list[Token | End]]]) -> None:
        for job, items in news:
            if job.ended:
                continue
            job.news.extend(items)
            if len(job.news) > MOST_UNREAD:
                self.cancel(job)
                job.news.clear()
                job.news.append(
                    End(ApiError(500, "dropped: the client reads too slowly", code="slow_reader"))
                )
            elif isinstance(items[-1], End):
                self._end(job)
            job.arrived.set()

    def _end(self, job: Job) -> None:
        job.ended = True
        self.live.discard(job)
        self._seconds += 0.1 * (time.monotonic() - job.started - self._seconds)

    # ---- the engine thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                may_step = self.llm.scheduler.has_work and (not self.paused or self._single_steps > 0)
                self._obey(wait=not may_step)
                if may_step and not self._stopping:
                    self._single_steps = max(0, self._single_steps - 1)
                    self._step()
                    self._rest()
        except Exception as error:
            log.exception("the engine thread stopped")
            self.failed = f"{type(error).__name__}: {error}"
        self._over = True
        for job in [*self._by_request.values()]:
            self._abort(job)
            self._tell([(job, [self._farewell()])])
        self._stopping = False  # so that `_obey` reads on: jobs that come last are told by `_add`
        self._obey(wait=False)
        self._stopping = True

    def _obey(self, wait: bool, timeout: float | None = None) -> None:
        """Run the commands that have come; with `wait`, wait for the first one."""
        try:
            while True:
                command = self._commands.get(wait, timeout)
                if command is None:
                    self._stopping = True
                    return
                command()
                wait = False
        except queue.Empty:
            return

    def _rest(self) -> None:
        """In slow motion, wait between steps, and obey meanwhile."""
        end = time.monotonic() + self.delay
        while (
            not self._stopping and not self.paused and (left := min(end - time.monotonic(), self.delay)) > 0
        ):
            self._obey(wait=True, timeout=left)

    def _add(self, job: Job) -> None:
        if job.ended:
            return
        if self._over:
            self._tell([(job, [self._farewell()])])
            return
        try:
            request = self.llm.add_request(job.token_ids, job.sampling)
        except ValueError as error:
            self._tell([(job, [End(ApiError(400, str(error)))])])
            return
        request.events = deque()
        job.request = request
        self._by_request[request] = job
        self.watch(None)

    def _abort(self, job: Job) -> None:
        if job.request is not None and self._by_request.pop(job.request, None) is not None:
            self.llm.abort(job.request)
            self.watch(None)

    def _step(self) -> None:
        step: Step | None = None
        try:
            step = self.llm.step()
        except FloatingPointError as error:
            log.warning("%s", error)
        news: list[tuple[Job, list[Token | End]]] = []
        for request in {chunk.request for chunk in step.chunks} if step else set(self._by_request):
            job = self._by_request.get(request)
            if job is None:
                continue
            items: list[Token | End] = [Token(*event) for event in request.events or ()]
            if request.events:
                request.events.clear()
            if not request.sequences:
                del self._by_request[request]
                why = request.error
                items.append(End(ApiError(500, str(why), code="engine_error") if why else None))
            if items:
                news.append((job, items))
        self._tell(news)
        self.watch(step)

    def _tell(self, news: list[tuple[Job, list[Token | End]]]) -> None:
        loops: dict[Any, list[tuple[Job, list[Token | End]]]] = {}
        for job, items in news:
            loops.setdefault(job.loop, []).append((job, items))
        for loop, part in loops.items():
            try:
                loop.call_soon_threadsafe(self._receive, part)
            except RuntimeError:  # the loop has closed: nobody reads any more
                log.debug("the event loop closed before its jobs ended")
