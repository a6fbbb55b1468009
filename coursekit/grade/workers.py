"""The processes that grade: one judge in each, on this machine or in a Dask cluster (`cluster.py`).

`stream` is the loop of both. It keeps a few submissions per worker in flight and yields each result as it arrives, so
a class of 10,000 needs no more memory in the workers' queues than a class of 10.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from coursekit.checks.framework import exercise
from coursekit.grade.finding import Job
from coursekit.grade.judge import MISSING, ExerciseResult, Judge, StudentResult
from coursekit.grade.sandbox import Rules
from coursekit.grade.submission import Book, Submission, read_submission
from coursekit.grade.text import clean

DIED = "the grader's process died while grading this"
Task = tuple[Job, Submission]


@dataclass(frozen=True)
class Settings:
    """Everything a judge needs to know about a run."""

    book: Book
    seed: int
    seconds: float
    memory_mb: int
    weak: bool = False  # grade even where the system cannot isolate answers

    def judge(self) -> Judge:
        """Make a judge."""
        return Judge(self.book, self.seed, seconds=self.seconds, memory_mb=self.memory_mb, weak=self.weak)


def read(job: Job, book: Book) -> Submission:
    """Read the submission of a job; it never raises."""
    if job.problem:
        return Submission(job.student, job.label, job.problem)
    if os.path.realpath(job.path) != str(job.path):
        return Submission(job.student, job.label, "the file was replaced by a link while the grader ran")
    found = read_submission(job.path, job.student, book)
    found.file = job.label or found.file
    return found


def failed(submission: Submission, book: Book, problem: str) -> StudentResult:
    """Return a result for a submission that could not be graded."""
    results = {id: ExerciseResult(exercise(id).fail_all(MISSING, problem)) for id in book.ids}
    return StudentResult(submission.student, submission.file, results, problem)


def judged(judge: Judge, submission: Submission) -> StudentResult:
    """Grade one submission; an error of the grader becomes the submission's problem."""
    try:
        return judge.grade(submission)
    except Exception as error:  # noqa: BLE001  one submission must not stop the others
        told = clean(f"the grader failed on this submission: {type(error).__name__}: {error}")
        return failed(submission, judge.book, told)


def layers_of(judge: Judge) -> list[str]:
    """Start one empty sandbox and return the layers that protect it."""
    with judge.zygote.start(Rules()) as sandbox:
        return list(sandbox.layers)


def grade_here(tasks: Iterable[Task], settings: Settings) -> Generator[tuple[Job, StudentResult]]:
    """Grade in this process, one after another."""
    judge = settings.judge()
    try:
        for job, submission in tasks:
            yield job, judged(judge, submission)
    finally:
        judge.close()


def grade_locally(
    tasks: Iterable[Task], settings: Settings, workers: int
) -> Generator[tuple[Job, StudentResult]]:
    """Yield results as they are ready, from `workers` processes. A lost process costs at most its own submission."""
    if workers == 1:
        yield from grade_here(tasks, settings)
        return
    suspects: list[Task] = []
    pool = _pool(workers, settings)

    def submit(task: Task) -> Future[StudentResult]:
        nonlocal pool
        try:
            return pool.submit(_grade, task[1])
        except BrokenProcessPool:  # a pool that lost a process accepts no more work
            pool = _pool(workers, settings)
            return pool.submit(_grade, task[1])

    try:
        for task, result in stream(tasks, submit, 2 * workers):
            if isinstance(result, StudentResult):
                yield task[0], result
            else:
                suspects.append(task)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()  # this also ends their zygotes and sandboxes
        raise
    pool.shutdown()
    for job, submission in suspects:
        with _pool(1, settings) as alone:
            for _, result in stream([(job, submission)], lambda task: alone.submit(_grade, task[1]), 1):
                good = isinstance(result, StudentResult)
                yield job, result if good else failed(submission, settings.book, DIED)


def stream(
    tasks: Iterable[Task],
    submit: Callable[[Task], Any],
    in_flight: int,
    watch: Callable[[], None] = lambda: None,
) -> Generator[tuple[Task, Any]]:
    """Yield each task with its result, or with the exception that its future raised, in the order of completion.

    `submit` returns a future of `concurrent.futures` or of Dask; `watch` is called every few seconds while nothing
    arrives, and may raise.
    """
    done: queue.SimpleQueue[tuple[Task, Any]] = queue.SimpleQueue()
    waiting = iter(tasks)
    running: dict[int, Any] = {}  # keeps the futures: Dask drops the task of a future without references

    def start() -> None:
        task = next(waiting, None)
        if task is not None:
            running[id(task)] = future = submit(task)
            future.add_done_callback(lambda future: done.put((task, future)))

    for _ in range(in_flight):
        start()
    while running:
        try:
            task, future = done.get(timeout=5)
        except queue.Empty:
            watch()
            continue
        del running[id(task)]
        yield task, _outcome(future)
        start()


def _outcome(future: Any) -> Any:
    try:
        return future.result()
    except Exception as error:  # noqa: BLE001  the caller decides what a lost worker means
        return error


# --- one process of the local pool ---

_judge: Judge


def _pool(workers: int, settings: Settings) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(settings,))


def _start_worker(settings: Settings) -> None:
    global _judge
    for number in (
        signal.SIGINT,
        signal.SIGHUP,
    ):  # they reach every process; the first process ends the others
        signal.signal(number, signal.SIG_IGN)
    _judge = settings.judge()
    signal.signal(signal.SIGTERM, _stop_worker)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process if the first one was killed: otherwise it would wait forever."""
    while os.getppid() == parent:
        time.sleep(1)
    _stop_worker()


def _stop_worker(number: int = 0, frame: object = None) -> None:
    _judge.zygote.close(wait=False)
    os._exit(1)  # an exception would become the result of the current submission


def _grade(submission: Submission) -> StudentResult:
    return judged(_judge, submission)
