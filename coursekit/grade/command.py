"""`course.py grade submissions/*/ --out report/`: grade every submission, whatever its contents."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import secrets
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from coursekit import ROOT
from coursekit.checks.framework import exercise
from coursekit.grade.judge import MISSING, ExerciseResult, Judge, StudentResult
from coursekit.grade.lockdown import exposed, missing_layers, unprotected
from coursekit.grade.report import write_report
from coursekit.grade.submission import Book, NoSuchChapter, chapter_of, load_book, read_submission

_judge: Judge


@dataclass(frozen=True)
class Job:
    """One submission to grade."""

    student: str
    path: Path


def find_jobs(places: list[Path], chapter: str | None) -> list[Job]:
    """One job for each folder or notebook. A folder is a student; its notebook of the chapter is the submission."""
    jobs = []
    for place in places:
        if place.is_dir():
            jobs.append(Job(place.resolve().name, _notebook_in(place, chapter)))
        else:
            folder = place.resolve().parent.name
            jobs.append(Job(folder if _is_chapter_name(place) else place.stem, place))
    seen: Counter[str] = Counter()
    unique = []
    for job in jobs:
        name = "".join(
            c if c.isprintable() else "?" for c in job.student
        )  # the name is printed and written to files
        seen[name] += 1
        unique.append(Job(f"{name} ({seen[name]})" if seen[name] > 1 else name, job.path))
    return unique


def grade_all(
    jobs: list[Job],
    book: Book,
    seed: int,
    *,
    workers: int,
    seconds: float,
    memory_mb: int,
    weak: bool = False,
) -> Generator[StudentResult]:
    """Yield results as they are ready, from `workers` processes. A lost process costs at most its own submission."""
    settings = (book, seed, seconds, memory_mb, weak)
    suspects: list[Job] = []
    if workers == 1:
        _start(*settings)
        try:
            for job in jobs:
                yield _grade(job)
        finally:
            _judge.close()
        return
    pool = _pool(workers, settings)
    try:
        for job, result in _as_ready({pool.submit(_grade, job): job for job in jobs}):
            if result is None:
                suspects.append(job)
            else:
                yield result
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()  # this also ends their zygotes and sandboxes
        raise
    pool.shutdown()
    for job in suspects:
        with _pool(1, settings) as pool:
            for _, result in _as_ready({pool.submit(_grade, job): job}):
                yield result or failed(job, book, "the grader's process died while grading this")


def failed(job: Job, book: Book, problem: str) -> StudentResult:
    """Return a result for a submission that could not be graded."""
    results = {id: ExerciseResult(exercise(id).fail_all(MISSING, problem)) for id in book.ids}
    return StudentResult(job.student, job.path.name, results, problem)


def main(arguments: list[str]) -> int:
    """Grade and write the report; exit code 0 if all were graded, 1 if some could not be, 2 for a bad request."""
    parser = argparse.ArgumentParser(prog="course.py grade", description="Grade submitted notebooks.")
    parser.add_argument("places", nargs="+", type=Path, help="folders (one per student) or notebooks")
    parser.add_argument(
        "--out", type=Path, default=Path("report"), help="folder for the report (default: report)"
    )
    parser.add_argument("--chapter", help="chapter number (default: the chapter of most submissions)")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)"
    )
    parser.add_argument("--seconds", type=float, default=10, help="time limit per exercise (default: 10)")
    parser.add_argument("--memory", type=int, default=1024, metavar="MB", help="memory limit (default: 1024)")
    parser.add_argument("--seed", type=int, help="seed from a grades.json, to repeat that run")
    parser.add_argument(
        "--weak-sandbox", action="store_true", help="grade even if this system cannot isolate answers"
    )
    options = parser.parse_args(arguments)
    if os.name != "posix":
        print("grade needs Linux or macOS: it isolates answers with process limits.", file=sys.stderr)
        return 2
    missing = missing_layers()
    if problems := _refusals(options.places, missing, options.weak_sandbox):
        print(*(f"grade: {problem}" for problem in problems), sep="\n", file=sys.stderr)
        return 2
    try:
        book = load_book(ROOT, options.chapter or _commonest_chapter(options.places))
    except NoSuchChapter as error:
        print(f"grade: {error}", file=sys.stderr)
        return 2
    jobs = find_jobs(options.places, book.chapter)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    limits = {"seconds": options.seconds, "memory_mb": options.memory}
    results: list[StudentResult] = []
    started = time.monotonic()
    interrupted = False
    try:
        workers = max(1, min(options.jobs, len(jobs)))
        with contextlib.closing(
            grade_all(jobs, book, seed, workers=workers, weak=options.weak_sandbox, **limits)
        ) as ready:
            for result in ready:
                results.append(result)
                _progress(len(results), len(jobs), started, result)
    except KeyboardInterrupt:
        interrupted = True
        print(
            f"\nInterrupted: the report covers the {len(results)} of {len(jobs)} submissions graded so far."
        )
    order = {job.student: number for number, job in enumerate(jobs)}
    results.sort(key=lambda result: order[result.student])
    facts = {"seed": seed, "limits": limits, "complete": not interrupted, "exposed": exposed(missing)}
    write_report(options.out, book, results, facts)
    _summary(results, options.out, time.monotonic() - started)
    if missing:
        print("Graded in a weak sandbox. Exposed to answers:", *exposed(missing), sep="\n  ")
    return 130 if interrupted else int(any(result.problem for result in results))


def _refusals(places: list[Path], missing: list[str], weak: bool) -> list[str]:
    """The reasons not to grade here, if any: missing layers of the sandbox, or files that answers could read."""
    problems = unprotected([ROOT, *places])
    if missing and not weak:
        problems.append(f"this system has no {' and no '.join(missing)}, so it cannot isolate answers.")
        problems += [f"exposed: {sentence}" for sentence in exposed(missing)]
        problems.append("grade in a Linux container, or accept this with --weak-sandbox.")
    return problems


def _summary(results: list[StudentResult], out: Path, seconds: float) -> None:
    bad = [result for result in results if result.problem]
    for result in bad:
        print(f"  {result.student}: {result.problem}")
    print(f"{len(results)} submissions graded in {seconds:.1f} s, {len(bad)} of them with a problem.")
    print(f"Report: {out / 'grades.csv'}, {out / 'grades.json'}, {out / 'index.html'}")


def _progress(done: int, count: int, started: float, result: StudentResult) -> None:
    left = (time.monotonic() - started) / done * (count - done)
    line = (
        f"{done} of {count} graded, about {left:.0f} s left: {result.student} {result.earned}/{result.points}"
    )
    if sys.stdout.isatty():
        print(f"\r\x1b[K{line}", end="\n" if done == count else "", flush=True)
    elif done == count or done % max(1, count // 20) == 0:
        print(line, flush=True)


def _pool(workers: int, settings: tuple[Book, int, float, int, bool]) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=settings)


def _start_worker(book: Book, seed: int, seconds: float, memory_mb: int, weak: bool) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches every process; the first process ends the others
    _start(book, seed, seconds, memory_mb, weak)
    signal.signal(signal.SIGTERM, _stop_worker)
    threading.Thread(target=_outlive_not, args=(os.getppid(),), daemon=True).start()


def _outlive_not(parent: int) -> None:
    """End this process if the first one was killed: otherwise it would wait forever."""
    while os.getppid() == parent:
        time.sleep(1)
    _stop_worker()


def _stop_worker(number: int = 0, frame: object = None) -> None:
    _judge.zygote.close(wait=False)
    os._exit(1)  # an exception would become the result of the current submission


def _start(book: Book, seed: int, seconds: float, memory_mb: int, weak: bool) -> None:
    global _judge
    _judge = Judge(book, seed, seconds=seconds, memory_mb=memory_mb, weak=weak)


def _grade(job: Job) -> StudentResult:
    try:
        return _judge.grade(read_submission(job.path, job.student, _judge.book))
    except Exception as error:  # noqa: BLE001  one submission must not stop the others
        return failed(
            job, _judge.book, f"the grader failed on this submission: {type(error).__name__}: {error}"
        )


def _as_ready(futures: dict[Future[StudentResult], Job]) -> Iterator[tuple[Job, StudentResult | None]]:
    waiting = set(futures)
    while waiting:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            try:
                yield futures[future], future.result()
            except BrokenProcessPool:
                yield futures[future], None


def _notebook_in(folder: Path, chapter: str | None) -> Path:
    found = sorted(path for path in folder.glob("**/*.ipynb") if ".ipynb_checkpoints" not in path.parts)
    named = [path for path in found if chapter and path.name.startswith(f"{chapter.zfill(2)}_")]
    holding = named or [path for path in found if chapter and chapter_of(path) == chapter.zfill(2)]
    chosen = holding or found
    return max(chosen, key=lambda path: path.stat().st_mtime) if chosen else folder / "no-notebook.ipynb"


def _is_chapter_name(path: Path) -> bool:
    return path.stem[:2].isdigit() and path.stem[2:3] == "_"


def _commonest_chapter(places: list[Path]) -> str:
    files = [
        path
        for place in places[:50]
        for path in (sorted(place.glob("*.ipynb")) if place.is_dir() else [place])
    ]
    found = [chapter for path in files if (chapter := chapter_of(path))]
    if not found:
        raise NoSuchChapter(
            "no submission contains an exercise of this course; name the chapter with --chapter, such as --chapter 2"
        )
    return max(sorted(set(found)), key=found.count)
