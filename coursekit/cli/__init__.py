"""The commands `lab`, `test`, `doctor` and `check` of `course.py`. The other commands have folders of their own."""
