"""Grading of one submission. Every exercise runs in its own sandbox, so none can harm another.

For an exercise the sandbox gets, in the order of the original notebook: the setup cells, answers to earlier exercises,
the cells that the student added around it, and the student's answer. Earlier answers that passed are the student's own.
The reference's answers replace others only where the exercise needs them, and the result says so (`blocked_by`). An
answer that fails with the student's own earlier answers is tried once more with the reference's.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from coursekit.checks.answers import CELL, AnswerRaised
from coursekit.checks.framework import CRASHED, UNSOLVED, Exercise, HostLost, Verdict, exercise
from coursekit.checks.kernel_source import NotAKernel, not_a_kernel
from coursekit.checks.source import in_own_cell
from coursekit.grade.lockdown import WeakSandbox, exposed, missing_layers
from coursekit.grade.sandbox import Rules, Sandbox, Zygote
from coursekit.grade.submission import Book, Submission

MISSING = "missing"
Step = tuple[str, str, str]  # kind, the cell's name in error messages, its source; kinds: see `_steps`


@dataclass
class ExerciseResult:
    """The result of one exercise. `blocked_by` names failed exercises that the reference's answers replaced."""

    verdict: Verdict
    notes: list[str] = field(default_factory=list)
    blocked_by: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        """The first failed part's status, or `passed`."""
        failure = self.verdict.first_failure
        return failure.status if failure else "passed"


@dataclass
class StudentResult:
    """The result of one submission."""

    student: str
    file: str
    exercises: dict[str, ExerciseResult]
    problem: str | None = None
    layers: list[str] = field(default_factory=list)

    @property
    def earned(self) -> int:
        """The points earned."""
        return sum(result.verdict.earned for result in self.exercises.values())

    @property
    def points(self) -> int:
        """The maximum number of points."""
        return sum(result.verdict.points for result in self.exercises.values())


class Judge:
    """Grades submissions of one chapter, one after another, each with a zygote of its own.

    Raises:
        WeakSandbox: this machine lacks a layer of the sandbox, and `weak` does not allow that; or every answer could
            read the course, because of where it is.
    """

    def __init__(
        self, book: Book, seed: int, *, seconds: float = 10, memory_mb: int = 1024, weak: bool = False
    ) -> None:
        self.book, self.seed, self.seconds, self.memory_mb = book, seed, seconds, memory_mb
        if (missing := missing_layers()) and not weak:
            raise WeakSandbox(f"no {' and no '.join(missing)} here. {' '.join(exposed(missing))}")
        self.zygote = Zygote(weak=weak)
        self.layers: list[str] = []

    def close(self) -> None:
        """End the process that forks sandboxes."""
        self.zygote.close()

    def grade(self, submission: Submission) -> StudentResult:
        """Grade all exercises of a submission."""
        results: dict[str, ExerciseResult] = {}
        self.zygote.renew()
        for id in self.book.ids:
            if submission.problem:
                results[id] = ExerciseResult(exercise(id).fail_all(MISSING, submission.problem))
            else:
                passed = {other for other, result in results.items() if result.verdict.passed}
                results[id] = self.grade_exercise(submission, exercise(id), passed)
        problem = submission.problem or (
            "no answers: every cell is unchanged" if submission.untouched else None
        )
        return StudentResult(submission.student, submission.file, results, problem, self.layers)

    def grade_exercise(self, submission: Submission, task: Exercise, passed: set[str]) -> ExerciseResult:
        """Grade one exercise, with the student's own answers to those that `passed`."""
        notes = list(submission.notes.get(task.id, []))
        blocked = [need for need in task.needs if need not in passed]
        verdict = self._judge(submission, task, passed, notes)
        if not verdict.passed and passed & set(task.needs):
            again = self._judge(submission, task, set(), [])
            if again.earned > verdict.earned:
                verdict = again
                notes.append(f"Graded together with the reference's answers to {', '.join(task.needs)}.")
        if blocked:
            notes.append(
                f"Ran with the reference's version of {', '.join(blocked)}, which is not solved yet."
            )
        return ExerciseResult(verdict, notes, blocked)

    def _judge(self, submission: Submission, task: Exercise, passed: set[str], notes: list[str]) -> Verdict:
        """Return the verdict; retry without the added cells if with them the process never reached the answer."""
        steps = list(self._steps(submission, task.id, passed))
        lost = self._try(task, steps)
        if isinstance(lost, Verdict):
            return lost
        verdict: Verdict | HostLost = lost
        added = {source for kind, _, source in steps if kind == "added"}
        if added:
            verdict = self._try(task, [step for step in steps if step[0] != "added"])
        if isinstance(verdict, Verdict):
            submission.harmful |= added  # not used again in the following exercises
            notes.append(f"Graded without the cells you added to the notebook: {lost.reason}.")
            return verdict
        return task.fail_all(lost.kind, f"Exercise {task.id}: {lost.reason}.")

    def _try(self, task: Exercise, steps: list[Step]) -> Verdict | HostLost:
        try:
            return self._run(task, steps)
        except HostLost as lost:
            return lost

    def _steps(self, submission: Submission, id: str, passed: set[str]) -> Iterator[Step]:
        """Yield the cells to run, by kind: setup, earlier (the student's), reference, added, and the answer."""

        def added(sources: list[str]) -> Iterator[Step]:
            kept = (source for source in sources if source not in submission.harmful)
            return (("added", f"<cell added by the student, {next(numbers)}>", source) for source in kept)

        numbers = itertools.count(1)  # two cells of one name would show each other's lines

        for number, cell in enumerate(self.book.cells, 1):
            if cell.kind == "code":
                yield "setup", f"<cell {number}>", cell.solved
            elif cell.kind == "answer" and cell.exercise:
                yield from added(submission.before.get(cell.exercise, []))
                own = submission.answers.get(cell.exercise, cell.stub)
                if cell.exercise == id:
                    yield "answer", f"{CELL}{id}>", own
                    yield from added(submission.after.get(id, []))
                    return
                if cell.exercise in passed:
                    yield "earlier", f"{CELL}{cell.exercise}>", own
                elif cell.exercise in exercise(id).needs:
                    yield "reference", f"{CELL}{cell.exercise}>", cell.solved

    def _run(self, task: Exercise, steps: list[Step]) -> Verdict:
        rules = Rules(self.seconds * task.slowness, max(self.memory_mb, task.memory_mb), task.without)
        with self.zygote.start(rules) as sandbox:
            self.layers = sandbox.layers
            raised, helpers = _load(sandbox, steps, task)
            answers = sandbox.find(task.answers) | helpers
            lacking = [name for name in task.answers if name not in answers]
            if raised is not None and lacking:
                if "NotImplementedError" in raised.bases:
                    return task.fail_all(UNSOLVED, "Not written yet.")
                if task.kernels and raised.name == NotAKernel.__name__:
                    return task.fail_all(CRASHED, not_a_kernel(raised.message))
                where = f" ({in_own_cell(raised.where, task.id)})" if raised.where else ""
                return task.fail_all(CRASHED, f"The cell raised {raised.name}: {raised.message}{where}.")
            if lacking:
                return task.fail_all(CRASHED, f"The cell does not define `{lacking[0]}`.")
            return task.run([answers[name] for name in task.answers], self.seed)


def _load(sandbox: Sandbox, steps: list[Step], task: Exercise) -> tuple[AnswerRaised | None, dict[str, Any]]:
    """Run the cells. Return the exception of the answer's own cell, and the helpers.

    A helper is taken right after the setup cell that defines it, before the student's cells can replace it.
    """
    of_answer, helpers, names = None, dict[str, Any](), task.helpers
    for kind, name, source in steps:
        kernels = task.answers if task.kernels and kind in ("added", "earlier", "answer") else ()
        raised = sandbox.run(source, name, secret=kind == "reference", kernels=kernels)
        of_answer = raised if kind == "answer" else of_answer
        if kind == "setup" and names and (defined := _defined(source) & set(names)):
            helpers |= sandbox.find(tuple(defined))
    return of_answer, helpers


def _defined(source: str) -> set[str]:
    """Return the names that a setup cell defines or imports."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found
