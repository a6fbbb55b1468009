"""The learner's side of a lesson: guesses before a cell runs, and the learner's own notebooks.

    question     a Predict box of a lesson's source: the question, the answer, and the reply to a guess
    box          the input that a lesson shows          guesses   the file that remembers the guesses
    comparison   a learner's answer beside the course's places    where the working copies are

Lessons call `predict("1-bytes")` and `compare("1.3")`. Importing this package imports nothing heavy.
"""

from __future__ import annotations


def predict(id: str) -> None:
    """Show the input for a guess to a Predict box; without a notebook kernel, one line of text."""
    from coursekit.learner.box import show_box

    show_box(id)


def compare(id: str) -> None:
    """Show the learner's answer to an exercise beside the course's; without a notebook kernel, one line of text."""
    from coursekit.learner.comparison import show_comparison

    show_comparison(id)
