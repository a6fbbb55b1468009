"""The grader: submitted notebooks in, one table of points and a feedback page per student out.

An answer cannot award itself points. The check runs in the *judge*, a process that never runs a line of a submission.
The answers run in *sandboxes*, one process per exercise. One socket connects them: the judge sends calls, the sandbox
sends values (`coursekit.checks.codec`: plain data, no pickle), and the judge computes the points from these values
alone. So printing, exiting, replacing the check, patching built-in functions, walking stack frames or writing to the
socket gains nothing: everything the sandbox sends is only ever an answer to a question, and right answers to fresh
questions are what the points are for. Only the judge knows the seed of the questions.

What remains to protect is the machine and the solutions on its disk. `lockdown.py` does that in layers, and documents
the limits of each.

    command.py      `course.py grade`: its options, exit codes and messages
    finding.py      the students of a class, the notebook of each, and the chapter
    workers.py      the processes that grade, on this machine
    cluster.py      the same on the workers of a Dask cluster
    results.py      the output folder: its lock, and the results that a killed run left
    submission.py   a notebook → the student's cells, by exercise id
    judge.py        one submission → points: which cells run in which sandbox, which failures block other exercises
    sandbox.py      the judge's end: starts sandboxes, sends calls, enforces time limits
    zygote.py       the other end: the processes that fork zygotes and sandboxes, and the code that runs in these
    lockdown.py     the restrictions on a sandbox
    syscalls.py     the list of system calls that a sandbox may make
    text.py         text from submissions, made safe to print
    report.py       JSON, CSV and HTML pages
"""
