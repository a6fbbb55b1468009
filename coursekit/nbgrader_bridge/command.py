"""`python -m coursekit nbgrader export DIR` and `python -m coursekit nbgrader import gradebook.db`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from coursekit import ROOT
from coursekit.build.exercises import sources
from coursekit.nbgrader_bridge.export import CannotExport, export
from coursekit.nbgrader_bridge.gradebook import CannotImport, Imported, import_grades, read_report


def main(arguments: list[str]) -> int:
    """Export or import; exit code 0, or 2 with one sentence on the problem; 1 if some students were not written."""
    parser = argparse.ArgumentParser(
        prog="coursekit nbgrader", description="Use the exercises with nbgrader."
    )
    commands = parser.add_subparsers(dest="do", required=True)
    out = commands.add_parser("export", help="write a course folder for nbgrader: source, release, config")
    out.add_argument("folder", type=Path, metavar="DIR", help="the course folder; it may exist")
    into = commands.add_parser("import", help="write our grader's points into nbgrader's gradebook")
    into.add_argument("database", type=Path, metavar="GRADEBOOK", help="nbgrader's gradebook.db")
    into.add_argument(
        "--grades",
        type=Path,
        default=Path("report/grades.json"),
        help="the report of `course.py grade` (default: report/grades.json)",
    )
    into.add_argument("--assignment", help="name of the assignment (default: the chapter's, as exported)")
    into.add_argument("--add-students", action="store_true", help="add students the gradebook does not know")
    options = parser.parse_args(arguments)
    try:
        if options.do == "export":
            return _export(options.folder)
        report = read_report(options.grades)
        assignment = options.assignment or sources(ROOT)[report["chapter"]].stem
        return _tell(import_grades(options.database, report, assignment, add_students=options.add_students))
    except (CannotExport, CannotImport) as error:
        print(f"nbgrader: {error}", file=sys.stderr)
        return 2


def _export(folder: Path) -> int:
    names = export(ROOT, folder)
    print(f"{len(names)} assignments in {folder}: {', '.join(names)}.")
    print(f"Next, in {folder}: nbgrader generate_assignment {names[0]} --force")
    return 0


def _tell(done: Imported) -> int:
    print(f"{done.assignment}: the scores of {len(done.written)} students were written.")
    told = {
        "skipped, because the gradebook does not know these students (--add-students adds them)": done.unknown,
        "not in the report, so nbgrader's own scores stand": done.left,
        "with a score given by hand, which stands": done.manual,
    }
    for reason, students in told.items():
        if students:
            print(f"{len(students)} {reason}: {', '.join(students)}.")
    return int(bool(done.unknown or done.left))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
