"""The interview trainer: questions that adapt, in the terminal and in a notebook (chapter 10).

    bank       reads curriculum/questions/                 template   number questions, computed by paged_ref
    judge      one question as asked, and its verdict      code_check runs the answer to a code question
    ability    Rasch model with topics, Bayesian           session    selects the next question: test, daily, exam
    progress   the learner's progress file                 report     the learner's level in each topic
    dice       random choices, the same in Python and JavaScript
    export     Markdown, Anki                              choosing   --topic, --level: which questions
    terminal   the command, with sitting (a test) and paper (output and input)     widget   the same in a notebook

`python3 course.py quiz` calls `main`. Importing this package imports nothing heavy.
"""

from __future__ import annotations


def main(arguments: list[str]) -> int:
    """Run the trainer in the terminal."""
    from coursekit.quiz.terminal import main as run

    return run(arguments)
