"""The trainer in a terminal: a real one (a pty), pipes, wrong words, and Ctrl-C at any moment."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coursekit import ROOT, quiz
from coursekit.__main__ import check_command
from coursekit.quiz import progress
from coursekit.quiz.bank import Code, Open, Short, load_bank
from coursekit.quiz.judge import LETTERS, ask
from tests.helpers.needs import needs_pty

BANK = load_bank()
COMMAND = [sys.executable, "-m", "coursekit", "quiz"]
POSIX = needs_pty


@pytest.fixture(autouse=True)
def own_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "progress.json"
    monkeypatch.setenv(progress.VARIABLE, str(path))
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return path


def piped(*words: str, answers: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], input=answers, capture_output=True, encoding="utf-8", timeout=120, cwd=ROOT
    )


class Terminal:
    """The trainer behind a pty, driven as a person would: wait for some text, type a line."""

    def __init__(self, *words: str) -> None:
        import pty

        self.process_id, self.file = pty.fork()
        if self.process_id == 0:
            os.chdir(ROOT)
            os.execv(sys.executable, [*COMMAND, *words])
        self.text = ""
        self.from_here = 0

    def wait_for(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        """Read until the pattern comes, after what was matched last."""
        end = time.monotonic() + seconds
        while True:
            found = re.compile(pattern).search(self.text, self.from_here)
            if found:
                self.from_here = found.end()
                return found
            if time.monotonic() > end or not self.read(end - time.monotonic()):
                raise AssertionError(f"{pattern!r} did not come. The terminal shows:\n{self.text}")

    def read(self, seconds: float) -> bool:
        if not select.select([self.file], [], [], max(0, seconds))[0]:
            return False
        try:
            data = os.read(self.file, 65536)
        except OSError:  # Linux says so where the other side is gone
            return False
        self.text += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)

    def type(self, line: str) -> None:
        os.write(self.file, f"{line}\n".encode())

    def interrupt(self, pattern: str) -> None:
        """Press Ctrl-C until the pattern comes: one in the instant between prompt and read is not felt."""
        for _ in range(10):
            time.sleep(0.3)
            os.write(self.file, b"\x03")
            try:
                self.wait_for(pattern, 5)
                return
            except AssertionError:
                continue
        raise AssertionError(f"Ctrl-C is not felt. The terminal shows:\n{self.text}")

    def end(self) -> int:
        """Wait for the process to end; its exit code."""
        while self.read(30):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.process_id, 0)[1])

    def close(self) -> None:
        os.close(self.file)
        try:
            os.kill(self.process_id, signal.SIGKILL)
            os.waitpid(self.process_id, 0)
        except (ProcessLookupError, ChildProcessError):
            pass


@pytest.fixture
def terminal() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for one in opened:
        one.close()


def test_the_command_is_known_and_quick_to_import() -> None:
    assert check_command("quiz") is None
    heavy = "{'torch', 'transformers', 'matplotlib', 'ipywidgets'}"
    code = f"import sys, coursekit.quiz.terminal; print(sorted({heavy} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert said.strip() == "[]"


@POSIX
def test_a_whole_test_in_a_real_terminal(
    terminal: list[Terminal], own_progress: Path, tmp_path: Path
) -> None:
    """Five questions with the right answers, whatever their kind; then the result, the file and the export."""
    target = tmp_path / "test.md"
    terminal.append(Terminal("--seed", "11", "--export", str(target)))
    [screen] = terminal
    screen.wait_for(r"5 questions that follow your answers")
    right = 0
    for number in range(1, 6):
        screen.wait_for(rf"{number} of 5 · ")
        right += answer(screen)
    screen.wait_for(r"points\.")
    screen.wait_for(r"Where you stand")
    screen.wait_for(r"Written to")
    assert screen.end() == 0
    assert "\x1b[1;36m" in screen.text, "headings are coloured in a terminal"
    records = progress.load(own_progress).records
    assert len(records) == 5 and sum(record.score == 1 for record in records) == right >= 2
    assert target.read_text(encoding="utf-8").count("## ") == 5


def answer(screen: Terminal) -> bool:
    """Answers the question on the screen, by finding it in the bank: rightly, or it does not know a number."""
    prompt = screen.wait_for(
        r"(a to [a-e]> |in \S+> |a number> |a word or a few> |which line is wrong\?.*> |aloud> )"
    )[1]
    shown = re.sub(r"\x1b\[[\d;]*m", "", screen.text)
    shown = shown[shown.rfind(" of 5 · ") :]
    flat = " ".join(shown.split())
    if prompt.startswith("a to"):
        for question in BANK:
            if question.kind == "choice" and " ".join(question.stem.split()) in flat:
                place = re.search(rf"([a-e])\) {re.escape(question.answer)}", flat)
                assert place
                screen.type(place[1])
                screen.wait_for("✓ Right")
                return True
        raise AssertionError(f"no such question: {flat}")
    if "aloud" in prompt:
        screen.type("")
        while screen.wait_for(r"y or n> |See notebooks/")[0] == "y or n> ":
            screen.type("y")
    elif "word" in prompt:
        question = next(q for q in BANK if isinstance(q, Short) and " ".join(q.stem.split()) in flat)
        screen.type(question.answer)
        screen.wait_for("✓ Right")
    elif "line" in prompt:
        code = next(q for q in BANK if isinstance(q, Code) and " ".join(q.stem.split()) in flat)
        lines = list(zip(code.code.splitlines(), code.answer.splitlines(), strict=True))
        number = next(i for i, pair in enumerate(lines) if pair[0] != pair[1])
        screen.type(str(number + 1))
        screen.wait_for(", corrected> ")
        screen.type(lines[number][1].strip())
        screen.wait_for("✓ Right")
    else:
        screen.type("many")
        screen.wait_for("Please give a (plain )?number")
        screen.type("?")
        screen.wait_for("The answer is")
        return False
    return True


@POSIX
def test_ctrl_c_at_a_prompt_keeps_what_was_answered(terminal: list[Terminal], own_progress: Path) -> None:
    terminal.append(Terminal("--seed", "3"))
    [screen] = terminal
    screen.wait_for(r"1 of 5 · ")
    screen.wait_for(r"> ")
    screen.type("?")
    screen.wait_for(r"2 of 5 · ")
    screen.wait_for(r"> ")
    screen.interrupt(r"Stopped after 1 of 5 questions; your answers are saved\.")
    assert screen.end() == 130 and "Traceback" not in screen.text
    assert len(progress.load(own_progress).records) == 1


@POSIX
def test_ctrl_c_before_the_first_answer_and_no_colours(
    terminal: list[Terminal], own_progress: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.append(Terminal("--daily"))
    [screen] = terminal
    screen.wait_for(r"1 of 5 · ")
    screen.wait_for(r"> ")
    screen.interrupt(r"Stopped after 0 of 5")
    assert screen.end() == 130 and "\x1b" not in screen.text
    assert not own_progress.exists()


def test_over_a_pipe_it_reads_and_prints_lines(own_progress: Path) -> None:
    done = piped("--ask", "2-one-table", answers="x\n?\n")
    assert done.returncode == 0 and done.stderr == "" and "\x1b" not in done.stdout
    for said in (
        "1 of 1 · Block tables and slots · level 2",
        "Please give a letter from a to d.",
        "✗ Not right.",
        "The answer is ",
        "One, which serves every layer.",
        "See notebooks/02_block_table.ipynb, the cell with 'own_pools = ['.",
        "0 of 1 points.",
    ):
        assert said in done.stdout, done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert len(progress.load(own_progress).records) == 1


def test_a_wrong_option_is_told_why() -> None:
    for letter in "abcd":
        done = piped("--ask", "2-one-table", answers=f"{letter}\n")
        whys = [wrong.why for wrong in BANK["2-one-table"].wrong]  # type: ignore[attr-defined]
        flat = " ".join(done.stdout.split())
        assert ("✓ Right." in flat) != any(why in flat for why in whys)


def test_a_code_question_is_run_and_says_what_the_check_says() -> None:
    done = piped("--ask", "2-code-slot", answers="99\n4\nphysical = blocks[logical - 1]\n")
    assert "Please give a line number from 1 to 6." in done.stdout
    assert (
        "✗ " in done.stdout
        and "expected" in done.stdout
        and "line 5: first = physical * block_size" in done.stdout
    )
    done = piped("--ask", "2-code-slot", answers="5\nfirst = block_size * physical\n")
    assert "✓ Right." in done.stdout


def test_open_questions_are_scored_by_oneself(own_progress: Path) -> None:
    question = BANK["2-open-block-size"]
    assert isinstance(question, Open)
    done = piped("--ask", question.id, answers="I would measure\ny\nn\nmaybe\nyes\nn\nn\n")
    assert "2 of 5 points." in done.stdout and "A strong answer:" in done.stdout
    assert progress.load(own_progress).records[0].score == pytest.approx(0.4)


def test_a_short_answer_in_other_words_is_left_to_the_learner(own_progress: Path) -> None:
    assert "✓ Right." in piped("--ask", "2-when-dry", answers="being thrown out\ny\n").stdout
    done = piped("--ask", "2-when-dry", answers="eviction\n")
    assert "Cached blocks of the prefix cache are evicted." in done.stdout
    assert [record.score for record in progress.load(own_progress).records] == [1, 0]


def test_the_end_of_the_input_stops_it_and_keeps_the_answers(own_progress: Path) -> None:
    done = piped("--seed", "1", answers="?\n?\n")
    assert done.returncode == 1 and "Stopped after 2 of 5 questions" in done.stdout
    assert len(progress.load(own_progress).records) == 2


def test_an_exam_tells_at_the_end() -> None:
    done = piped("--exam", "20", "--seed", "5", answers="?\n" * 20)
    assert done.returncode == 0
    before, _, after = done.stdout.partition("20 of 20 · ")
    assert "The answer is" not in before and "See notebooks/" not in before
    assert after.count("See notebooks/") == 20 and "0 of 20 points." in after
    done = piped("--exam", "1", "--topic", "1", "--level", "1", answers="b\nhm\n0 B\ny\n" + "?\n" * 6)
    assert "Your answer: " in done.stdout.partition("Question 1")[2], "said again, with the question"


def test_the_same_seed_and_the_same_day_give_the_same_questions(own_progress: Path) -> None:
    for words in (("--seed", "8"), ("--daily",)):
        said = []
        for _ in range(2):
            own_progress.unlink(missing_ok=True)
            said.append(piped(*words, answers="?\n" * 5).stdout)
        assert said[0] == said[1] and "5 of 5 · " in said[0]


def test_topic_and_level_choose(own_progress: Path) -> None:
    said = piped("--topic", "7", "--level", "4-5", answers="?\n" * 5).stdout
    headings = re.findall(r"\d of 5 · (.*) · level (\d)", said)
    assert len(headings) == 5 and {level for _, level in headings} <= {"4", "5"}
    assert {title for title, _ in headings} <= {BANK.topics["batch"], BANK.topics["model"]}
    said = piped("--topic", "POOL", answers="?\n" * 5).stdout
    assert said.count(f"· {BANK.topics['pool']} ·") == 5
    said = piped("--topic", "weak", answers="?\n" * 5).stdout
    assert len({title for title, _ in re.findall(r"\d of 5 · (.*) · level (\d)", said)}) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--topic", "tabel"], "there is no topic 'tabel'. Did you mean table?"),
        (["--topic", "9"], "there is no topic '9'. Topics: sizing"),
        (["--topic", "10"], "Chapters: 1, 2, 3, 4, 5, 6, 7. Or: weak."),
        (["--topic", "weak"], "no topic is known to be weak yet"),
        (["--level", "6"], "--level 6: a level is 1, 2, 3, 4 or 5, a range is 2-4"),
        (["--level", "4-2"], "--level 4-2: a level is"),
        (["--level", ""], "a level is"),
        (["--exam", "-3"], "--exam"),
        (["--exam", "many"], "--exam many: it must be a whole number"),
        (["--exam", "0"], "an exam of 0 questions: there are"),
        (["--exam", "100000"], "an exam of 100000 questions: there are"),
        (["--seed", "x"], "--seed x: it must be a whole number"),
        (["--daily", "--level", "2"], "--daily chooses the questions itself"),
        (["--daily", "--exam", "5"], "not allowed with argument"),
        (["--ask", "2-one-tabel"], "there is no question '2-one-tabel'. Did you mean 2-one-table?"),
        (["--export", "no/such/folder/x.md"], "no/such/folder/x.md cannot be written: No such file"),
        (["--cards", "no/such/folder/x.txt"], "cannot be written"),
        (["--level", "1" * 5000], "a level is 1, 2, 3, 4 or 5"),
        (["--level", "2-"], "--level 2-: a level is"),
        (["--ask", ""], "there is no question ''"),
        (["--ask", "2-one-table", "--seed", "1"], "--ask chooses the questions itself"),
        (["--cards", "x.txt", "--topic", "2"], "--cards asks no questions: leave out --topic"),
        (["--progress", "--export", "x.md"], "--progress asks no questions"),
        (["--export", "x\0.md"], "cannot be written"),
        (["--tpic", "2"], "unrecognized arguments"),
        (["table"], "unrecognized arguments: table"),
    ],
)
def test_a_wrong_word_is_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = quiz.main(words)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    told = capsys.readouterr().err
    assert code == 2 and message in told and "Traceback" not in told


def test_cards_progress_and_forget(
    tmp_path: Path, own_progress: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cards = tmp_path / "cards.txt"
    assert quiz.main(["--cards", str(cards)]) == 0 and f"{len(BANK)} cards" in capsys.readouterr().out
    assert cards.read_text(encoding="utf-8").startswith("#separator:tab\n")
    assert quiz.main(["--progress"]) == 0
    assert "You have not answered any questions yet." in capsys.readouterr().out
    piped("--ask", "2-one-table", answers="?\n")
    quiz.main(["--progress"])
    assert "Block tables and slots: level" in capsys.readouterr().out
    assert quiz.main(["--forget"]) == 0 and not own_progress.exists()
    assert quiz.main(["--forget"]) == 0 and "no saved progress" in capsys.readouterr().out


def test_a_damaged_file_is_said_and_the_test_goes_on(own_progress: Path) -> None:
    own_progress.write_text("{broken", encoding="utf-8")
    done = piped("--ask", "2-one-table", answers="?\n")
    assert done.returncode == 0 and "The file with your progress is damaged." in done.stdout
    assert len(progress.load(own_progress).records) == 1


def test_a_stopped_test_leaves_no_empty_export_and_no_file_is_lost(tmp_path: Path) -> None:
    target = tmp_path / "x.md"
    piped("--export", str(target), answers="")
    assert not target.exists()
    target.write_text("mine")
    piped("--export", str(target), answers="")
    assert target.read_text() == "mine"
    piped("--export", str(target), answers="?\n")
    assert target.read_text(encoding="utf-8").startswith("# Interview test")


def test_odd_answers_are_asked_for_again() -> None:
    long = "1" * 5000
    done = piped("--ask", "2-code-slot", answers=f"{long}\n²\n4\n\n0\n4\n?\n")
    assert done.returncode == 0 and done.stderr == "" and "Nothing was typed" in done.stdout
    assert done.stdout.count("Please give a line number from 1 to 6.") == 3
    done = piped("--ask", "1-bytes-per-token", answers=f"{long}\n🙂\n42 %\n?\n")
    assert done.returncode == 0 and done.stderr == ""
    for said in (
        "That number is too large.",
        "Please give a number, in B.",
        "Please answer in B, not in %.",
    ):
        assert said in done.stdout
    done = piped("--ask", "2-open-block-size", answers="\n?\n" + "y\n" * 5)
    assert "Please type y for yes or n for no." in done.stdout and "5 of 5 points." in done.stdout


def test_bytes_that_are_no_text_can_be_answered_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:surrogateescape")
    target = tmp_path / "x.md"
    done = subprocess.run(
        [*COMMAND, "--ask", "2-when-dry", "--export", str(target)],
        input=b"over \xff\ny\n", capture_output=True, timeout=60, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == b""
    assert r"over \\udcff" in target.read_text(encoding="utf-8")


@POSIX
def test_an_output_that_is_closed_ends_it_without_a_traceback(own_progress: Path, tmp_path: Path) -> None:
    target = tmp_path / "x.md"
    process = subprocess.Popen(
        [*COMMAND, "--export", str(target)], stdin=-1, stdout=-1, stderr=-1, text=True, cwd=ROOT
    )
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write("?\n")
    process.stdin.flush()
    while not process.stdout.readline().startswith("2 of 5"):
        pass
    process.stdout.close()
    process.stdin.write("?\n")
    process.stdin.close()
    assert process.stderr.read() == "" and process.wait(60) == 1
    process.stderr.close()
    assert (
        len(progress.load(own_progress).records) >= 1 and target.read_text(encoding="utf-8").count("## ") >= 1
    )
    for closed in ("<&-", ">&-"):
        shell = f'"$0" -m coursekit quiz --ask 2-one-table {closed}'
        done = subprocess.run(
            ["sh", "-c", shell, sys.executable], capture_output=True, text=True, cwd=ROOT, input=""
        )
        assert done.returncode == 2 and done.stderr.startswith("quiz: standard input")


@POSIX
def test_ctrl_d_and_no_place_to_keep_answers(
    terminal: list[Terminal], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "file" / "p.json"))
    monkeypatch.setenv("TERM", "dumb")
    terminal.append(Terminal("--seed", "3"))
    [screen] = terminal
    screen.wait_for(r"this\s+session\s+runs\s+without\s+saved\s+progress")
    screen.wait_for(r"1 of 5 · ")
    screen.wait_for(r"> ")
    screen.type("?")
    screen.wait_for(r"2 of 5 · ")
    screen.wait_for(r"> ")
    os.write(screen.file, b"\x04")
    screen.wait_for(r"Stopped after 1 of 5 questions\.\n")
    assert screen.end() == 1 and "Traceback" not in screen.text and "\x1b[1" not in screen.text


def test_narrow_terminals_and_poor_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    item = ask(BANK["2-one-table"], 0)
    done = piped("--ask", item.question.id, answers=f"{LETTERS[0]}\n")
    assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) <= 60


# ---- answers from another device


def test_answers_from_another_device_are_added_once(own_progress: Path, tmp_path: Path) -> None:
    def answer(second: int) -> progress.Record:
        return progress.Record(
            f"2031-05-17T10:00:{second:02}+00:00", "1-budget", "sizing", 2, 1.0, 0.0, "test"
        )

    progress.load().add(answer(30))
    other = progress.load(tmp_path / "phone.json")
    for second in (10, 30, 50):
        other.add(answer(second))
    before = (tmp_path / "phone.json").read_bytes()
    assert "2 new answers" in " ".join(piped("--import", str(tmp_path / "phone.json")).stdout.split())
    assert "no new answers" in " ".join(piped("--import", str(tmp_path / "phone.json")).stdout.split())
    assert progress.load(own_progress).records == [answer(10), answer(30), answer(50)]
    assert (tmp_path / "phone.json").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "not a file of saved progress"), ('{"version": 9, "answers": []}', "newer version")],
)
def test_an_import_that_cannot_be_read_changes_nothing(
    text: str, said: str, own_progress: Path, tmp_path: Path
) -> None:
    (tmp_path / "other.json").write_text(text)
    done = piped("--import", str(tmp_path / "other.json"))
    assert done.returncode == 2 and said in done.stderr and not own_progress.exists()
    assert (tmp_path / "other.json").read_text() == text
    assert "cannot be read" in piped("--import", str(tmp_path / "missing.json")).stderr
    assert "leave out" in piped("--import", "x.json", "--topic", "2").stderr
