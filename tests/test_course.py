"""course.py with everything slow replaced by a stand-in for Python that records what it is asked to do.

The stand-in plays the interpreter that makes environments, the environment's own interpreter, and pip.
course.py itself runs unmodified, in a process of its own, in a copy of the course's folder.
"""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path, PureWindowsPath

import pytest

import course

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-in for Python is a shell script")

STAND_IN = """#!/bin/sh
echo "$*" >> "$RECORD"
case "$*" in
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; eval "$VENV_DOES" ;;
  *"-m pip "*) echo "Collecting torch"; eval "$PIP_DOES" ;;
  "-m paged_ref.weights") eval "$WEIGHTS_DOES" ;;
  *) echo "handed over: $*" ;;
esac
"""

DRIVER = """
import collections, importlib.util, os, pathlib, platform, runpy, shutil, sys, sysconfig
Usage = collections.namedtuple("Usage", "total used free")
shutil.disk_usage = lambda path: Usage(10**12, 0, 10**12)
sys.executable, sys.argv = {python!r}, ["course.py", *{arguments!r}]
sys.orig_argv = ["python3", *sys.argv]
{prelude}
runpy.run_path("course.py", run_name="__main__")
"""


class Course:
    """A copy of the course's folder, and what its course.py did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "course"
        self.venv = self.folder / ".venv"
        self.stamp = self.venv / course.STAMP.name
        self.record = folder / "record"
        self.python = folder / "python"
        self.python.write_text(STAND_IN)
        self.python.chmod(0o755)
        self.folder.mkdir()
        for name in ("course.py", "pyproject.toml", "constraints.txt"):
            shutil.copy(course.ROOT / name, self.folder)
        shutil.copytree(course.ROOT / "coursekit", self.folder / "coursekit")

    def start(self, *arguments: str, prelude: str = "", **does: str) -> subprocess.Popen:
        """Start course.py; `does` are shell commands: PIP_DOES, VENV_DOES, WEIGHTS_DOES."""
        environment = {**os.environ, "RECORD": str(self.record), "PIP_FIND_LINKS": ""}
        environment |= {"PIP_DOES": "", "VENV_DOES": "", "WEIGHTS_DOES": "", **does}
        driver = DRIVER.format(python=str(self.python), arguments=list(arguments), prelude=prelude)
        return subprocess.Popen(
            [sys.executable, "-c", driver],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, prelude: str = "", **does: str) -> tuple[int, str, str]:
        """Exit code, output and errors of a whole run."""
        process = self.start(*arguments, prelude=prelude, **does)
        output, errors = process.communicate(timeout=60)
        return process.returncode, output, errors

    def asked(self) -> list[str]:
        """What the stand-in was asked since the last call, in order and in short."""
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        self.record.unlink(missing_ok=True)
        kinds = []
        for line in lines:
            if line.startswith("-m venv"):
                kinds.append("venv")
            elif "--index-url" in line:
                kinds.append("torch")
            elif "-m pip" in line:
                kinds.append("pip")
            else:
                kinds.append(line.removeprefix("-m ").removeprefix("paged_ref."))
        return kinds

    def wait_for(self, what: str) -> None:
        """Wait until the stand-in has been asked for something."""
        deadline = time.monotonic() + 20
        while not (self.record.exists() and what in self.record.read_text()):
            assert time.monotonic() < deadline, f"{what} was never asked for"
            time.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Course:
    return Course(tmp_path)


# --------------------------------------------------------------------------------------------- old Pythons


def test_an_old_python_is_told_so() -> None:
    for version in ((3, 6, 15), (3, 9, 0), (3, 10, 13)):
        sentence = course.python_problem(version)
        assert "needs Python 3.11 or newer" in sentence
        assert f"this is Python {version[0]}.{version[1]}" in sentence
    assert course.python_problem((3, 11, 0)) is None
    assert course.python_problem((3, 14, 2)) is None


def test_a_python_that_is_too_new_is_told_so_before_anything_starts(folder: Course) -> None:
    sentence = course.python_problem((3, 15, 0))
    assert sentence is not None
    assert "needs Python 3.11 to 3.14, and this is Python 3.15: install one of those" in sentence
    code, output, errors = folder.run("lab", prelude="sys.version_info = (3, 15, 0)")
    assert (code, output, errors) == (1, "", sentence + "\n")
    assert not folder.venv.exists()
    assert folder.asked() == []


def test_an_old_python_can_read_the_file() -> None:
    source = (course.ROOT / "course.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 6))
    with pytest.raises(SyntaxError):
        ast.parse("if (x := 1): pass", feature_version=(3, 6))  # the parser does refuse what is too new
    # Up to the check, only sys is imported.
    before = source[: source.index("sys.exit(python_problem")]
    imported = [
        node for node in ast.walk(ast.parse(before + "pass")) if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert [name.name for node in imported for name in node.names] == ["sys"]


# --------------------------------------------------------------------------------------------------- systems

NO_CONFSTR = "def unknown(name): raise ValueError('unrecognized configuration name')\nos.confstr = unknown"
INTEL_MAC = "sys.platform = 'darwin'; platform.machine = lambda: 'x86_64'"
ARM_MAC = "sys.platform = 'darwin'; platform.machine = lambda: 'arm64'"
LINUX = "sys.platform = 'linux'; platform.machine = lambda: 'x86_64'"


@pytest.mark.parametrize(
    ("prelude", "sentence"),
    [
        (f"{INTEL_MAC}; platform.mac_ver = lambda: ('15.1', ('', '', ''), 'x86_64')", "Intel processor"),
        (f"{ARM_MAC}; platform.mac_ver = lambda: ('13.7', ('', '', ''), 'arm64')", "this is macOS 13.7"),
        (f"{LINUX}; os.confstr = lambda name: 'glibc 2.17'", "this Linux has glibc 2.17"),
        (f"{LINUX}\n{NO_CONFSTR}", "this Linux has no glibc"),
        ("sys.platform = 'win32'; sysconfig.get_platform = lambda: 'win-arm64'", "built for Windows on ARM"),
        ("sys.maxsize = 2**31 - 1", "this Python is a 32-bit program"),
        ("sys.platform = 'linux'; platform.machine = lambda: 'ppc64le'", "this is Linux on ppc64le"),
        ("sys.platform = 'freebsd14'", "this system is freebsd14"),
    ],
    ids=["Intel Mac", "macOS 13", "old glibc", "musl", "Windows on ARM", "32 bits", "POWER", "FreeBSD"],
)
def test_an_unsupported_system_is_told_so_before_anything_is_made(
    folder: Course, prelude: str, sentence: str
) -> None:
    code, output, errors = folder.run("lab", prelude=prelude)
    assert (code, output) == (1, "")
    assert sentence in errors
    assert "the course needs Linux with glibc 2.28 or newer" in errors
    assert errors.count("\n") == 1
    assert folder.asked() == []
    assert not folder.venv.exists()


@pytest.mark.parametrize(
    "system",
    [
        ("linux", "x86_64", 64, (2, 28), None),
        ("linux", "aarch64", 64, (2, 41), None),
        ("darwin", "arm64", 64, None, (14, 0)),
        ("darwin", "arm64", 64, None, (26, 1)),
        ("win32", "amd64", 64, None, None),
    ],
)
def test_a_supported_system_is_let_through(system: tuple) -> None:
    assert course.system_problem(*system) is None
    assert course.system_problem(*course.this_system()) is None  # and so is the one that runs these tests


def test_windows_long_paths_are_announced_where_the_folder_is_deep() -> None:
    assert course.long_paths("C:\\course") == ""
    assert course.long_paths("C" * 67) == ""
    note = course.long_paths("C" * 68)
    assert "more than 259 characters" in note
    assert "LongPathsEnabled" in note


def test_output_is_utf_8_where_the_system_s_code_page_is_not(folder: Course) -> None:
    """As on Windows with its output in a file: cp1252 has no arrow."""
    says = 'echo "ERROR: a → b"; exit 1'
    code, _, errors = folder.run("doctor", PIP_DOES=says, PYTHONIOENCODING="cp1252", PYTHONUTF8="0")
    assert code == 1
    assert "the set-up failed (ERROR: a → b)" in errors
    assert "Traceback" not in errors


# ------------------------------------------------------------------------------------- the command as typed


@pytest.mark.parametrize("typed", ["python3", "python", "python3.12", "python.exe"])
def test_a_python_that_was_named_is_named_again(typed: str) -> None:
    assert course.typed_command(typed, "course.py") == f"{typed.removesuffix('.exe')} course.py"


def test_a_path_is_shortened_only_if_the_name_finds_the_same_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("one", "two words"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "python9").write_text("")
        (tmp_path / place / "python9").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "one"))
    assert course.typed_command(str(tmp_path / "one" / "python9"), "./course.py") == "python9 ./course.py"
    other = str(tmp_path / "two words" / "python9")
    assert course.typed_command(other, "course.py") == f"'{other}' course.py"


def test_windows_launcher_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`py -3 course.py` starts python.exe by its full path, and often no `python` is there."""
    monkeypatch.setattr(course.os, "name", "nt")
    monkeypatch.setattr(course, "Path", PureWindowsPath)
    monkeypatch.setattr(course.shutil, "which", lambda name: "C:\\Windows\\py.exe" if name == "py" else None)
    monkeypatch.setattr(course.sys, "prefix", sys.base_prefix)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    python = r"C:\Users\Jo Doe\Python\python.exe"
    assert course.typed_command(python, "course.py") == f"py -{version} course.py"
    monkeypatch.setattr(course.sys, "prefix", "an environment")
    assert course.typed_command(python, "course.py") == f'"{python}" course.py'


def test_remedies_print_the_command_that_was_typed(folder: Course) -> None:
    typed = "sys.orig_argv = ['python', 'course.py']; sys.platform = 'linux'"
    code, output, _ = folder.run("--help", prelude=typed)
    assert (code, output.splitlines()[0]) == (
        0,
        "usage: python course.py COMMAND [ARGUMENTS] [--torch-index URL]",
    )
    output = folder.run("doctor", prelude=typed)[1]
    assert f"    python course.py lab --torch-index {course.CPU_INDEX}" in output


# ---------------------------------------------------------------------------------------------- the set-up


def test_first_start_installs_fetches_and_hands_over(folder: Course) -> None:
    code, output, errors = folder.run("lab", "7", "--no-browser", "--port", "9000")
    assert (code, errors) == (0, "")
    asked = folder.record.read_text().splitlines()
    assert (
        asked[1] == "-I -m pip install --no-input --constraint constraints.txt --editable .[lab,serve,test]"
    )
    assert folder.asked() == [
        "venv",
        "pip",
        "paged_ref warm-up",
        "weights",
        "coursekit lab 7 --no-browser --port 9000",
    ]
    for step in ("1/3", "2/3", "3/3", "handed over: -m coursekit lab 7"):
        assert step in output
    assert json.loads(folder.stamp.read_text())["folder"] == str(folder.folder)


def test_second_start_only_starts_the_word(folder: Course) -> None:
    folder.run("doctor")
    folder.asked()
    code, output, _ = folder.run("doctor", PIP_DOES="exit 1", VENV_DOES="exit 1")
    assert code == 0
    assert folder.asked() == ["coursekit doctor"]
    assert output == "handed over: -m coursekit doctor\n"
    folder.run("lab")
    assert folder.asked() == ["weights", "coursekit lab"]  # which returns at once when the model is there


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_a_change_in_what_is_asked_for_is_installed_into_the_same_environment(
    folder: Course, name: str
) -> None:
    folder.run("doctor")
    folder.asked()
    with (folder.folder / name).open("a") as file:
        file.write("\n# changed\n")
    folder.run("doctor")
    assert folder.asked() == ["pip", "paged_ref warm-up", "weights", "coursekit doctor"]


@pytest.mark.parametrize("key", ["folder", "python"])
def test_another_python_or_place_makes_a_new_environment(folder: Course, key: str) -> None:
    folder.run("doctor")
    folder.asked()
    stamp = json.loads(folder.stamp.read_text())
    folder.stamp.write_text(json.dumps(stamp | {key: "another"}))
    (folder.venv / "left").write_text("over")
    folder.run("doctor")
    assert folder.asked() == ["venv", "pip", "paged_ref warm-up", "weights", "coursekit doctor"]
    assert not (folder.venv / "left").exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", "null"])
def test_a_damaged_stamp_is_no_stamp(folder: Course, damage: str) -> None:
    folder.run("doctor")
    folder.asked()
    folder.stamp.write_text(damage)
    assert folder.run("doctor")[0] == 0
    assert folder.asked() == ["venv", "pip", "paged_ref warm-up", "weights", "coursekit doctor"]


# ------------------------------------------------------------------------------- interrupted, and two at once


@pytest.mark.parametrize("step", ["VENV", "PIP"])
def test_killed_then_run_again(folder: Course, step: str) -> None:
    """After kill -9 the step lives on a while; the next start waits for it, then makes everything again."""
    process = folder.start("doctor", **{f"{step}_DOES": 'touch "$(dirname $0)/../half-made"; sleep 2'})
    folder.wait_for(step.lower())
    time.sleep(0.1)
    process.kill()
    process.communicate()
    assert not folder.stamp.exists()
    folder.asked()
    code, output, errors = folder.run("doctor")
    assert (code, errors) == (0, "")
    assert "waiting" in output
    assert folder.asked() == ["venv", "pip", "paged_ref warm-up", "weights", "coursekit doctor"]
    assert not (folder.venv / "half-made").exists()


def test_ctrl_c_ends_with_one_sentence_and_takes_pip_along(folder: Course) -> None:
    process = folder.start("doctor", PIP_DOES="echo $$ > pid; exec sleep 60")
    folder.wait_for("pip")
    while not (folder.folder / "pid").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert errors == "\nStopped; the same command continues from here.\n"
    assert not folder.stamp.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder.folder / "pid").read_text()), 0)
    assert folder.run("doctor")[0] == 0


def test_two_at_once_set_up_once(folder: Course) -> None:
    processes = [folder.start("doctor", PIP_DOES="sleep 0.5") for _ in range(2)]
    outputs = [process.communicate(timeout=30)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    asked = folder.asked()
    assert (asked.count("venv"), asked.count("pip"), asked.count("coursekit doctor")) == (1, 1, 2)
    assert sum("waiting" in output for output in outputs) == 1


# -------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("pip_says", "sentence"),
    [
        (
            "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken",
            "could not reach its package index: check",
        ),
        ("OSError: [Errno 28] No space left on device", "the disk is full: make room in"),
        ("PermissionError: Permission denied", "copy the course into a folder of your own"),
        (
            "ERROR: No matching distribution found for torch==2.13.0",
            "use 3.11 to 3.14, or another --torch-index",
        ),
        ("ERROR: something new", "the set-up failed (ERROR: something new): look for the cause in"),
    ],
)
def test_what_pip_cannot_do_is_one_sentence(folder: Course, pip_says: str, sentence: str) -> None:
    code, _, errors = folder.run("doctor", PIP_DOES=f"echo '{pip_says}'; exit 1")
    assert code == 1
    assert sentence in errors
    assert errors.count("\n") == 1
    assert not folder.stamp.exists()
    assert folder.run("doctor")[0] == 0


@pytest.mark.parametrize(
    ("prelude", "sentence"),
    [
        ("real = importlib.util.find_spec\n"
         "importlib.util.find_spec = lambda name: None if name == 'ensurepip' else real(name)",
         "sudo apt install python3-venv"),
        ("shutil.disk_usage = lambda path: Usage(0, 0, 10**9)", "1.0 GB free: make room"),
        ("def deny(*a, **k): raise PermissionError(13, 'Permission denied', '.venv')\n"
         "pathlib.Path.mkdir = deny",
         "copy it to a folder of your own"),
        ("def full(*a, **k): raise OSError(28, 'No space left on device')\n"
         "pathlib.Path.write_text = full",
         "the disk is full"),
    ],
    ids=["no ensurepip", "no space", "not writable", "full"],
)  # fmt: skip
def test_what_the_machine_lacks_is_one_sentence(folder: Course, prelude: str, sentence: str) -> None:
    code, _, errors = folder.run("doctor", prelude=prelude)
    assert code == 1
    assert sentence in errors
    assert "Traceback" not in errors
    assert "pip" not in folder.asked()


def test_an_environment_that_is_not_ours_is_left_alone(folder: Course) -> None:
    theirs = folder.venv / "lib" / "theirs.py"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("x = 1")
    code, _, errors = folder.run("doctor")
    assert code == 1
    assert "not made by course.py: rename it" in errors
    assert theirs.read_text() == "x = 1"
    assert folder.asked() == []


@pytest.mark.parametrize("target", ["another environment", "another course's environment", "nothing"])
def test_a_link_in_place_of_the_environment_is_left_alone(
    folder: Course, tmp_path: Path, target: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    if target != "nothing":
        (elsewhere / "bin").mkdir(parents=True)
        (elsewhere / "bin" / "python").write_text("theirs")
    if target == "another course's environment":
        (elsewhere / course.LOCK.name).touch()
        (elsewhere / course.STAMP.name).write_text('{"folder": "elsewhere"}')
    before = {path: path.is_file() and path.read_bytes() for path in elsewhere.rglob("*")}
    folder.venv.symlink_to(elsewhere, target_is_directory=True)
    code, _, errors = folder.run("doctor")
    assert code == 1
    assert f"is a link to {elsewhere} and not made by course.py: remove the link" in errors
    assert errors.count("\n") == 1
    assert {path: path.is_file() and path.read_bytes() for path in elsewhere.rglob("*")} == before
    assert folder.venv.is_symlink()
    assert folder.asked() == []


def test_a_file_in_place_of_the_environment_is_left_alone(folder: Course) -> None:
    folder.venv.write_text("theirs")
    code, _, errors = folder.run("doctor")
    assert code == 1
    assert "not made by course.py: rename it" in errors
    assert folder.venv.read_text() == "theirs"


def test_without_the_model_the_word_still_starts(folder: Course) -> None:
    code, output, _ = folder.run("lab", WEIGHTS_DOES="exit 1")
    assert code == 0
    assert "The model is missing: chapters 0 and 7 need it" in output
    assert "handed over: -m coursekit lab" in output


def test_a_wrong_word_and_help_set_nothing_up(folder: Course) -> None:
    code, _, errors = folder.run("lba")
    assert code == 1
    assert "there is no command 'lba'. Did you mean lab?" in errors
    for arguments in ((), ("--help",), ("help",), ("lab", "--help")):
        code, output, _ = folder.run(*arguments)
        assert code == 0
        assert "usage: python3 course.py COMMAND" in output
    assert folder.asked() == []
    assert not folder.venv.exists()


# ---------------------------------------------------------------------------------------------- --torch-index


def test_the_torch_index_is_used_and_remembered(folder: Course) -> None:
    process = folder.start("doctor", "--torch-index", "https://example.org/cpu", PIP_DOES="exec sleep 60")
    folder.wait_for("pip")
    process.send_signal(signal.SIGINT)
    process.communicate()
    folder.asked()
    folder.run("doctor")  # the choice outlives the interruption
    asked = folder.record.read_text()
    assert "--no-deps --index-url https://example.org/cpu torch" in asked
    assert folder.asked() == ["venv", "torch", "pip", "paged_ref warm-up", "weights", "coursekit doctor"]
    folder.run("doctor")
    assert folder.asked() == ["coursekit doctor"]
    folder.run("doctor", "--torch-index=default")
    assert folder.asked() == ["venv", "pip", "paged_ref warm-up", "weights", "coursekit doctor"]


def test_a_torch_index_that_is_none(folder: Course) -> None:
    for arguments in (["--torch-index", "cpu"], ["--torch-index"]):
        code, _, errors = folder.run("doctor", *arguments)
        assert code == 1
        assert "--torch-index needs a URL" in errors
    assert folder.asked() == []


@pytest.mark.skipif(sys.platform != "linux", reason="only PyTorch for Linux brings NVIDIA's libraries")
def test_gigabytes_are_announced(folder: Course, tmp_path: Path) -> None:
    assert "up to 4 GB to download" in folder.run("doctor")[1]
    assert "to download" not in folder.run("doctor", "--torch-index", "https://example.org/cpu")[1]
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    links = {"PIP_FIND_LINKS": str(tmp_path / "wheels")}
    assert "to download" not in folder.run("doctor", "--torch-index", "default", **links)[1]
