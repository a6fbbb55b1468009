"""The exercises in an nbgrader course, and this course's sandboxed scores in nbgrader's gradebook.

    command.py     `python -m coursekit nbgrader export DIR` and `… import gradebook.db`
    export.py      a course folder as nbgrader wants it: one assignment per chapter
    gradebook.py   the points of a `grades.json` into a gradebook

nbgrader runs an answer and its check in one process, so an answer can replace the check and award itself points. The
grader of this course cannot be forged in that way, so its points replace nbgrader's.
"""
