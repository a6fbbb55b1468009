"""The learner's working copies: made by `course.py lab`, brought up to date by `course.py update`.

copies     makes the copies, and the bases from which they were made
merge      a new version of a notebook, merged cell by cell into a learner's copy
command    `course.py update`
"""
