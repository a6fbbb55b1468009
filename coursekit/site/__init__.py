"""The course as web pages: today the interview trainer, which works offline on a phone.

    command    `python3 course.py site`              trainer/   the page: HTML, CSS, JavaScript modules
    trainer    puts the page, its data and its service worker into one folder
    questions  the bank of questions as JSON         icons      the icons, drawn by code

Data flows one way: curriculum/questions/*.toml -> questions.py -> questions.json -> the page. A further data file, such
as a script of interviews, is one more entry in `DATA` of `trainer.py`; the service worker and the page's version then
include it.
"""
