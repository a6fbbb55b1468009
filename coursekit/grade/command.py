"""`course.py grade submissions/*/ --out report/`: grade every submission, whatever its contents."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from coursekit import ROOT
from coursekit.grade.cluster import Cluster, NoCluster
from coursekit.grade.finding import Job, choose, commonest_chapter, search
from coursekit.grade.judge import StudentResult
from coursekit.grade.lockdown import WeakSandbox, exposed, missing_layers, unprotected
from coursekit.grade.report import write_report
from coursekit.grade.results import CannotWrite, Results, course_digest, in_one_sentence
from coursekit.grade.submission import Book, NoSuchChapter, bytes_of, load_book
from coursekit.grade.text import clean
from coursekit.grade.workers import Settings, Task, grade_locally, read

UNTOUCHED = "no answers: every cell is unchanged"  # a result, not a failure to grade
HELP = """A student's name is the part of the path in which the places differ: for home/ann/course/exercises and
home/bob/course/exercises, ann and bob. The newest exercise notebook of the chapter below each folder is graded; lessons
and copies of the solutions never are. A run that was killed continues if you repeat its command."""


class Stopped(Exception):
    """A signal asked the run to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def find_jobs(places: list[Path], chapter: str) -> list[Job]:
    """One job for each folder or notebook. A folder is a student; its notebook of the chapter is the submission."""
    return [choose(one, chapter) for one in search(places)]


def main(arguments: list[str]) -> int:
    """Grade and write the report.

    Exit code 0 if all were graded, 1 if some could not be, 2 for a bad request or an output folder that cannot be
    written, 128 and the signal's number if a signal stopped the run (130 for Ctrl-C).
    """
    options = _parser().parse_args(arguments)
    if os.name != "posix":
        print("grade needs Linux or macOS: it isolates answers with process limits.", file=sys.stderr)
        return 2
    try:
        with _stoppable():
            return _run(options)
    except (NoSuchChapter, CannotWrite, NoCluster, WeakSandbox) as error:
        print(f"grade: {error}", file=sys.stderr)
        return 2
    except Stopped as stopped:
        return 128 + stopped.number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="course.py grade", description="Grade submitted notebooks.", epilog=HELP
    )
    parser.add_argument("places", nargs="+", type=Path, help="folders (one per student) or notebooks")
    parser.add_argument(
        "--out", type=Path, default=Path("report"), help="folder for the report (default: report)"
    )
    parser.add_argument("--chapter", help="chapter number (default: the chapter of most students)")
    parser.add_argument(
        "--jobs", type=_positive_int, default=os.cpu_count() or 1, help="processes (default: all cores)"
    )
    parser.add_argument(
        "--dask", metavar="ADDRESS", help="a Dask scheduler, such as tcp://host:8786; its workers grade"
    )
    parser.add_argument("--seconds", type=_positive, default=10, help="time limit per exercise (default: 10)")
    parser.add_argument(
        "--memory", type=_positive_int, default=1024, metavar="MB", help="memory limit (default: 1024)"
    )
    parser.add_argument("--seed", type=int, help="seed from a grades.json, to repeat that run")
    parser.add_argument(
        "--weak-sandbox", action="store_true", help="grade even if this system cannot isolate answers"
    )
    return parser


def _refusals(places: list[Path], missing: list[str], weak: bool) -> list[str]:
    """The reasons not to grade here, if any: missing layers of the sandbox, or files that answers could read."""
    problems = unprotected([ROOT, *(Path(os.path.realpath(place)) for place in places)])
    if missing and not weak:
        problems.append(f"this system has no {' and no '.join(missing)}, so it cannot isolate answers.")
        problems += [f"exposed: {sentence}" for sentence in exposed(missing)]
        problems.append("grade in a Linux container, or accept this with --weak-sandbox.")
    return problems


def _run(options: argparse.Namespace) -> int:
    missing = [] if options.dask else missing_layers()  # a cluster's workers are checked one by one
    if problems := _refusals([] if options.dask else options.places, missing, options.weak_sandbox):
        print(*(f"grade: {problem}" for problem in problems), sep="\n", file=sys.stderr)
        return 2
    if options.chapter is not None:
        load_book(ROOT, options.chapter)  # an unknown chapter is reported before the search
    found = search(options.places)
    chapter, told = (options.chapter, "") if options.chapter else commonest_chapter(found)
    book = load_book(ROOT, chapter)
    jobs = [choose(one, book.chapter) for one in found]
    print(told or f"Chapter {int(book.chapter)}.", flush=True)
    run = {
        "chapter": book.chapter,
        "limits": {"seconds": options.seconds, "memory_mb": options.memory},
        "course": course_digest(ROOT, book),
    }
    if options.seed is not None:
        run["seed"] = options.seed
    started = time.monotonic()
    with Results(options.out, run, secrets.randbits(32)) as store:
        results, stopped = _grade(jobs, book, store, options)
        facts = {"seed": store.seed, "limits": run["limits"], "complete": stopped is None}
        facts["exposed"] = exposed(missing)
        order = {job.student: number for number, job in enumerate(jobs)}
        results.sort(key=lambda result: order[result.student])
        with in_one_sentence(options.out):
            write_report(options.out, book, results, facts, {job.student: job.others for job in jobs})
        if stopped is None:
            store.finish()
        else:
            print(
                f"\nInterrupted: the report covers the {len(results)} of {len(jobs)} submissions graded so far. "
                "The same command continues."
            )
    _summary(results, options.out, time.monotonic() - started)
    if missing:
        print("Graded in a weak sandbox. Exposed to answers:", *exposed(missing), sep="\n  ")
    if stopped is not None:
        return 128 + stopped
    return int(any(result.problem and result.problem != UNTOUCHED for result in results))


def _grade(
    jobs: list[Job], book: Book, store: Results, options: argparse.Namespace
) -> tuple[list[StudentResult], int | None]:
    """Grade every job whose result is not in the store; return all results, and the signal that stopped the run."""
    settings = Settings(book, store.seed, options.seconds, options.memory, options.weak_sandbox)
    keys = {job.student: _key(job) for job in jobs}
    results = [
        store.earlier[keys[job.student]]
        for job in jobs
        if _still_right(store.earlier.get(keys[job.student]), job)
    ]
    done = {result.student for result in results}
    left = [job for job in jobs if job.student not in done]
    if results:
        print(f"Continuing: {len(results)} of {len(jobs)} submissions are graded already.", flush=True)
    count, started = len(results), time.monotonic()
    try:
        with contextlib.closing(_ready(left, settings, options)) as ready:
            for job, result in ready:
                store.add(keys[job.student], result)
                results.append(result)
                _progress(
                    len(results), len(jobs), (time.monotonic() - started) / (len(results) - count), result
                )
    except KeyboardInterrupt:
        return results, signal.SIGINT
    except Stopped as stopped:
        return results, stopped.number
    return results, None


def _ready(
    jobs: list[Job], settings: Settings, options: argparse.Namespace
) -> Generator[tuple[Job, StudentResult]]:
    """Yield the results as they arrive, from this machine's processes or from a Dask cluster."""
    tasks: Iterator[Task] = ((job, read(job, settings.book)) for job in jobs)
    if not options.dask:
        yield from grade_locally(tasks, settings, max(1, min(options.jobs, len(jobs))))
        return
    with Cluster(options.dask, settings) as cluster:
        for worker, problem in cluster.refused.items():
            print(f"The worker {clean(worker)} gets no work: {problem}.", flush=True)
        print(f"{len(cluster.accepted)} Dask workers grade.", flush=True)
        yield from cluster.grade(tasks)


def _key(job: Job) -> str:
    """Identify a submission by its student, its file and the file's contents."""
    try:
        digest = hashlib.sha256(b"" if job.problem else bytes_of(job.path)).hexdigest()[:32]
    except ValueError:
        digest = "unreadable"
    return f"{digest} {job.student} {job.label}"


def _still_right(result: StudentResult | None, job: Job) -> bool:
    return result is not None and not job.problem and "the grader" not in (result.problem or "")


def _summary(results: list[StudentResult], out: Path, seconds: float) -> None:
    told = [result for result in results if result.problem]
    for result in told:
        print(f"  {result.student}: {result.problem}")
    bad = sum(result.problem != UNTOUCHED for result in told)
    print(f"{len(results)} submissions graded in {seconds:.1f} s, {bad} of them with a problem.")
    print(f"Report: {out / 'grades.csv'}, {out / 'grades.json'}, {out / 'index.html'}")


def _progress(done: int, count: int, seconds_each: float, result: StudentResult) -> None:
    left = seconds_each * (count - done)
    line = (
        f"{done} of {count} graded, about {left:.0f} s left: {result.student} {result.earned}/{result.points}"
    )
    if sys.stdout.isatty():
        print(f"\r\x1b[K{line}", end="\n" if done == count else "", flush=True)
    elif done == count or done % max(1, count // 20) == 0:
        print(line, flush=True)


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP raise Stopped, so the run still writes its report."""

    def stop(number: int, frame: FrameType | None) -> None:
        for other in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)  # the report is written once
        raise Stopped(number)

    try:
        old: dict[Any, Any] = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGHUP)}
    except ValueError:  # not in the main thread, where no signal arrives
        old = {}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _positive(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return value
