"""The grader: many submitted notebooks, one table of points, and a page of feedback for each student.

Why an answer cannot give itself points. The check runs in the *judge*, a process that never runs a line of a
submission. The answers run in a *sandbox*, a process of their own for every exercise. Between them goes one socket:
the judge sends calls, the sandbox sends values (`coursekit.checks.codec`: plain data, no pickle). Points are made in
the judge from these values alone. So printing, exiting, replacing the check, patching built-in functions, walking
stack frames or writing to the socket gain nothing: whatever the sandbox says is only ever an answer to a question,
and right answers to fresh questions are what the points are for. Their seed exists in the judge only.

What is left to defend is the machine and the solutions on its disk. `lockdown.py` does that, in layers, and says how
far each goes.

    command.py      `course.py grade`: finds the submissions, shares them out over processes
    submission.py   a notebook → the student's cells, by exercise id
    judge.py        one submission → points: which cells run in which sandbox, what blocks what
    sandbox.py      the judge's end: starts sandboxes, sends calls, keeps the time
    zygote.py       the other end: a small process that forks sandboxes, and what runs in them
    lockdown.py     what a sandbox may not do
    report.py       JSON, CSV and pages
"""
