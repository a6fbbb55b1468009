"""Grading in a Dask cluster that already exists: one judge in each worker, results streamed back.

The workers need the same course, installed or on their path, and no file of the class: this process reads the
submissions and sends the students' cells. A worker gets work only if its sandbox has every required layer. Needs the
optional packages of the extra `cluster`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterable
from typing import Any

from coursekit import ROOT
from coursekit.grade.finding import Job
from coursekit.grade.judge import Judge, StudentResult
from coursekit.grade.lockdown import REQUIRED
from coursekit.grade.results import course_digest
from coursekit.grade.submission import Submission
from coursekit.grade.text import clean
from coursekit.grade.workers import (
    DIED,
    Settings,
    Task,
    failed,
    judged,
    layers_of,
    stream,
)

IN_FLIGHT = 3  # submissions per worker: one in work, two on the way


class NoCluster(Exception):
    """The cluster cannot be used, or its last worker is gone. The message is one sentence."""


class Cluster:
    """A connection to a Dask scheduler, and the workers that passed the check. Use it in a `with` statement."""

    def __init__(self, address: str, settings: Settings) -> None:
        """Connect and check every worker. Raises NoCluster if no worker may get work."""
        try:
            from distributed import Client
        except ImportError:
            raise NoCluster(
                'Dask is not installed; `pip install "paged-attention-course[cluster]"` installs it.'
            ) from None
        self.settings = settings
        try:
            self.client = Client(address, timeout=10, set_as_default=False)
        except (OSError, ValueError) as error:
            raise NoCluster(
                f"no Dask scheduler answers at {clean(address)}: {clean(str(error), 200)}"
            ) from None
        self.accepted: list[str] = []
        self.refused: dict[str, str] = {}
        digest = course_digest(ROOT, settings.book)
        for worker, answer in sorted(self.client.run(prepare, settings, on_error="return").items()):
            problem = _why_not(answer, digest, settings.weak)
            if problem:
                self.refused[worker] = problem
            else:
                self.accepted.append(worker)
        if not self.accepted:
            self.close()
            reasons = "; ".join(f"{worker}: {why}" for worker, why in self.refused.items())
            raise NoCluster(
                f"no worker of the cluster may grade ({reasons or 'the cluster has no workers'})."
            )

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the judges of this run in the workers, and the connection."""
        with contextlib.suppress(Exception):  # a cluster that is gone has nothing left to end
            self.client.run(end, self.settings.seed, on_error="ignore")
        with contextlib.suppress(Exception):
            self.client.close(timeout=5)

    def grade(self, tasks: Iterable[Task]) -> Generator[tuple[Job, StudentResult]]:
        """Yield results as they are ready. A submission whose worker is lost is given to another worker by Dask."""

        def submit(task: Task) -> Any:
            return self.client.submit(
                grade_one, shared, task[1], workers=self.accepted, pure=False, allow_other_workers=False
            )

        shared = self.client.scatter(self.settings, broadcast=True, workers=self.accepted)
        for (job, submission), result in stream(tasks, submit, IN_FLIGHT * len(self.accepted), self._watch):
            if not isinstance(result, StudentResult):
                result = failed(submission, self.settings.book, f"{DIED} ({type(result).__name__})")
            yield job, result

    def _watch(self) -> None:
        if self.client.status != "running":
            raise NoCluster("the connection to the Dask scheduler is lost; the same command continues.")
        present = set(self.client.scheduler_info(n_workers=-1)["workers"])
        if not present & set(self.accepted):
            raise NoCluster("every worker that may grade has left the cluster; the same command continues.")


def _why_not(answer: Any, digest: str, weak: bool) -> str | None:
    """The reason why a worker with this answer to `prepare` gets no work; None if it may grade."""
    if not isinstance(answer, dict):
        return f"the course could not be started there: {type(answer).__name__}: {clean(str(answer), 200)}"
    if answer["digest"] != digest:
        return "it has another version of the course"
    missing = [layer for layer in REQUIRED if layer not in answer["layers"]]
    return f"its sandbox lacks {' and '.join(missing)}" if missing and not weak else None


# --- in a worker ---

_judges: dict[int, Judge] = {}
_turn = threading.Lock()  # a worker may have several threads; its judge grades one submission at a time


def prepare(settings: Settings) -> dict[str, Any]:
    """Start this worker's judge; return the course's digest and the layers of a sandbox."""
    with _turn:
        return {"digest": course_digest(ROOT, settings.book), "layers": layers_of(_judge_of(settings))}


def grade_one(settings: Settings, submission: Submission) -> StudentResult:
    """Grade one submission with this worker's judge. A worker that restarted since the check is checked again."""
    with _turn:
        fresh = settings.seed not in _judges
        judge = _judge_of(settings)
        if fresh and not settings.weak and not set(REQUIRED) <= set(layers_of(judge)):
            return failed(submission, settings.book, "this worker's sandbox lacks a required layer")
        return judged(judge, submission)


def end(seed: int) -> None:
    """End this worker's judge of a run."""
    free = _turn.acquire(timeout=20)  # a submission may still be in work if the run was interrupted
    try:
        judge = _judges.pop(seed, None)
        if judge:
            judge.close()
    finally:
        if free:
            _turn.release()


def _judge_of(settings: Settings) -> Judge:
    if settings.seed not in _judges:
        _judges[settings.seed] = settings.judge()
    return _judges[settings.seed]
