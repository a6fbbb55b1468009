"""The interview trainer: questions that adapt, in the terminal and in a notebook (chapter 10).

    bank       reads curriculum/questions/                 template   number questions, computed by paged_ref
    judge      one question as asked, and its verdict      code_check runs the answer to a code question
    ability    Rasch with topics, by Bayes                 session    which question comes next: test, daily, exam
    progress   the learner's own file                      report     where the learner stands
    export     Markdown, Anki                              choosing   --topic, --level: which questions
    terminal   the command, with sitting (a test) and paper (lines out and in)     widget   the same in a notebook

`python3 course.py quiz` calls `main`. Importing this package imports nothing heavy.
"""

from __future__ import annotations


def main(arguments: list[str]) -> int:
    """The trainer in the terminal."""
    from coursekit.quiz.terminal import main as run

    return run(arguments)
