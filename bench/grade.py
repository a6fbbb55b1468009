"""Time and memory of grading a class: many small submissions, on this machine's processes or on local Dask workers.

Each submission is a solved notebook, of which the first exercise is graded; with `--whole-chapter`, all exercises are,
as in a real class. The search for the files, the results file and the report are included.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import tempfile
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

from coursekit import ROOT
from coursekit.build.exercises import expand, sources
from coursekit.grade.cluster import Cluster, NoCluster
from coursekit.grade.finding import Job, choose, search
from coursekit.grade.judge import StudentResult
from coursekit.grade.report import write_report
from coursekit.grade.results import Results, course_digest
from coursekit.grade.submission import Book, load_book
from coursekit.grade.workers import Settings, grade_locally, read

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--students", type=int, default=300, help="number of submissions (default: 300)")
    parser.add_argument("--workers", type=int, default=2, help="processes that grade (default: 2)")
    parser.add_argument("--chapter", default="2", help="chapter (default: 2)")
    parser.add_argument(
        "--whole-chapter", action="store_true", help="grade every exercise, not only the first"
    )
    parser.add_argument("--dask", action="store_true", help="grade on local Dask workers")


def run(args: argparse.Namespace) -> int:
    """Make the class, grade it, and print the time and the peak memory; return 0 if all points were given."""
    book = load_book(ROOT, args.chapter)
    notebook = json.dumps(expand(sources(ROOT)[book.chapter].read_text(encoding="utf-8"), solved=True)[0])
    if not args.whole_chapter:
        book = first_exercise(book)
    with tempfile.TemporaryDirectory(prefix="bench-grade-") as folder:
        places = []
        for number in range(args.students):
            places.append(Path(folder, "in", f"student{number:05}"))
            places[-1].mkdir(parents=True)
            (places[-1] / f"{book.name}.ipynb").write_text(notebook, encoding="utf-8")
        started = time.perf_counter()
        results = grade(book, places, Path(folder, "out"), args.workers, dask=args.dask)
        seconds = time.perf_counter() - started
    kind = "Dask workers" if args.dask else "processes"
    log.info("%d submissions of %d exercises, %d %s", len(results), len(book.ids), args.workers, kind)
    log.info("%.1f s, %.1f submissions per second", seconds, len(results) / seconds)
    log.info("peak memory: %d MB in the first process, %d MB in the largest other one", *_peak_mb())
    return int(any(result.earned != result.points for result in results))


def grade(book: Book, places: list[Path], out: Path, workers: int, *, dask: bool) -> list[StudentResult]:
    """Grade a class as `course.py grade` does and return the results."""
    settings = Settings(book, 1, 60, 1024)
    jobs = [choose(one, book.chapter) for one in search(places)]
    results = []
    with Results(out, {"chapter": book.chapter, "course": course_digest(ROOT, book)}, settings.seed) as store:
        ready = _on_dask(jobs, settings, workers) if dask else _here(jobs, settings, workers)
        for job, result in ready:
            store.add(job.student, result)
            results.append(result)
        write_report(out, book, results, {"seed": settings.seed, "complete": True})
        store.finish()
    return results


def first_exercise(book: Book) -> Book:
    """Return the chapter up to the check of its first exercise."""
    end = next(number for number, cell in enumerate(book.cells) if cell.kind == "check")
    return replace(book, cells=book.cells[: end + 1])


def _here(jobs: list[Job], settings: Settings, workers: int) -> Generator[tuple[Job, StudentResult]]:
    yield from grade_locally(((job, read(job, settings.book)) for job in jobs), settings, workers)


def _on_dask(jobs: list[Job], settings: Settings, workers: int) -> Generator[tuple[Job, StudentResult]]:
    try:
        from distributed import LocalCluster
    except ImportError:
        raise ValueError("--dask needs the packages of the extra `cluster`") from None
    cluster: Any = LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    try:
        with cluster, Cluster(cluster.scheduler_address, settings) as grader:
            yield from grader.grade((job, read(job, settings.book)) for job in jobs)
    except NoCluster as error:
        raise ValueError(str(error)) from None


def _peak_mb() -> tuple[int, int]:
    """Peak resident memory of this process, and of the largest of its ended children, in MB (Linux counts in KiB)."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    mine, largest = (resource.getrusage(one).ru_maxrss * 1024 // 1_000_000 for one in who)
    return mine, largest
