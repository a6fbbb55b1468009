#!/usr/bin/env python3
"""The course's one command: sets everything up beside itself, then does what its first word says.

    python3 course.py lab       set up, fetch the model, open JupyterLab on the first notebook
    python3 course.py test      set up, run every test and validate every notebook

Needs Python 3.11 and a network, nothing else. Invariants:

- The stamp in `.venv` exists only while `.venv` is complete: it is removed before anything changes and
  written last, in one rename. So a set-up stopped at any moment, even by kill -9, is made again.
- One set-up at a time. The lock is a file lock that pip inherits, so it also outlives a killed course.py for
  as long as its pip does.
- With a matching stamp, nothing is started but the word itself.

Every line must be readable to Python 3.6 (no `match`, no `:=`), so that an old Python gets as far as the
check below.
"""

import sys

OLDEST_PYTHON = (3, 11)
NEWEST_PYTHON = (3, 14)  # the newest for which every pinned package has wheels


def python_problem(version):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - runs on old Pythons
    """Return one sentence about a version of Python that the course does not support, None for the others."""
    if OLDEST_PYTHON <= tuple(version[:2]) <= NEWEST_PYTHON:
        return None
    old = tuple(version[:2]) < OLDEST_PYTHON
    needs = (
        "{}.{} or newer".format(*OLDEST_PYTHON)
        if old
        else "{}.{} to {}.{}".format(*(OLDEST_PYTHON + NEWEST_PYTHON))
    )
    return "course.py: the course needs Python {}, and this is Python {}.{}: install {} from {}".format(
        needs,
        version[0],
        version[1],
        "a newer one" if old else "one of those",
        "python.org or your system's packages and name it, for example: python3.12 course.py lab",
    )


if __name__ == "__main__" and python_problem(sys.version_info):
    sys.exit(python_problem(sys.version_info))

import errno
import hashlib
import importlib.util
import io
import json
import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
INSTALLED = ("Lib/" if os.name == "nt" else "lib/python*/") + "site-packages/*.dist-info"
STAMP = VENV / "course-stamp.json"
LOCK = VENV / "course-lock"
INDEX = VENV / "course-torch-index"  # what --torch-index said last; survives a set-up that is made again
LOG = VENV / "course-setup.log"

OLDEST_GLIBC = (2, 28)
OLDEST_MACOS = (14, 0)
LONGEST_PATH = 191  # below the course's folder, in characters; Windows allows 259 for the whole path
REQUIREMENT = ".[lab,serve,test]"
CONSTRAINTS = "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
NEEDS_MODEL = ("lab", "test", "serve", "bench")


def typed_command(python: str, script: str) -> str:
    """Return the start of the command line that runs this file, as the user typed it: "python3 course.py".

    Args:
        python: the interpreter as it was named, a word or a path (`sys.orig_argv[0]`).
        script: this file as it was named (`sys.argv[0]`).
    """
    name = Path(python).name.removesuffix(".exe")
    found = shutil.which(name)
    if name != python.removesuffix(".exe") and not (
        found and Path(found).resolve() == Path(python).resolve()
    ):
        # Windows' launcher passes a full path on, and the name alone may start another Python or none.
        by_launcher = os.name == "nt" and sys.prefix == sys.base_prefix and shutil.which("py")
        name = f"py -{sys.version_info[0]}.{sys.version_info[1]}" if by_launcher else quoted(python)
    return f"{name} {quoted(script)}"


def quoted(path: str) -> str:
    """Return a path as the system's shell takes it."""
    if os.name == "nt":
        return f'"{path}"' if " " in path else path
    return shlex.quote(path)


COMMAND = typed_command(sys.orig_argv[0], sys.argv[0])
HELP = f"""usage: {COMMAND} COMMAND [ARGUMENTS] [--torch-index URL]

  lab [CHAPTER] [--no-browser] [--port N]   open JupyterLab on your copy of the first notebook or of a chapter (lab 7)
  update                                    bring new versions into your copies and keep what you wrote
  test [--fast] [-- PYTEST ARGUMENTS]       run every test and validate every notebook
  serve [--host ADDRESS] [--port N]         serve the model, with a live page of its memory
  doctor                                    tell whether this machine is ready, by running a kernel on it
  help                                      list every command; COMMAND --help explains one

The first start makes .venv here and installs the course into it; later starts take a moment. Ctrl-C stops it;
the same command continues.

  --torch-index URL   take PyTorch from this index, for instance its much smaller CPU builds:
                      {CPU_INDEX}
                      The choice is remembered; `--torch-index default` takes it back.
"""


class SetupError(Exception):
    """Set-up cannot go on. The message is one sentence: what is wrong and what to do."""


# ---------------------------------------------------------------------------------------- supported systems


def system_problem(
    system: str, machine: str, bits: int, glibc: tuple[int, int] | None, macos: tuple[int, int] | None
) -> str | None:
    """Return one sentence about a system for which PyTorch or another package has no wheels, None for the others.

    Args:
        system: `sys.platform`.
        machine: the processor that this Python was built for: x86_64, AMD64, arm64, ARM64, aarch64, i686, …
        bits: 64, or 32 for a 32-bit Python.
        glibc: version of the GNU C library; None if there is none, as on Alpine Linux.
        macos: version of macOS; None on other systems.
    """
    needs = (
        "and the course needs Linux with glibc 2.28 or newer (x86_64 or aarch64), macOS 14 or newer on Apple "
        "silicon, or Windows on x86_64"
    )
    processor = machine.lower()
    if bits < 64:
        return f"this Python is a 32-bit program, {needs}: install a 64-bit Python."
    if system == "linux":
        if processor not in ("x86_64", "aarch64"):
            return f"this is Linux on {machine}, {needs}."
        if glibc is None:
            return f"this Linux has no glibc (Alpine Linux, for example, uses musl), {needs}."
        if glibc < OLDEST_GLIBC:
            return f"this Linux has glibc {glibc[0]}.{glibc[1]}, {needs}: use a newer release of it."
        return None
    if system == "darwin":
        if processor != "arm64":
            remedy = "on Apple silicon, install an arm64 Python"
            return f"this Python runs on an Intel processor or as an Intel program, {needs}: {remedy}."
        if macos is not None and macos < OLDEST_MACOS:
            return f"this is macOS {macos[0]}.{macos[1]}, {needs}: update macOS."
        return None
    if system == "win32":
        if processor in ("amd64", "x86_64"):
            return None
        return f"this Python was built for Windows on ARM, {needs}: use an x86_64 machine, or Linux on aarch64 in WSL."
    return f"this system is {system}, {needs}."


def this_system() -> tuple[str, str, int, tuple[int, int] | None, tuple[int, int] | None]:
    """Return the arguments of `system_problem` for this machine."""
    machine = platform.machine()
    if sys.platform == "win32":  # of Python, not of the machine: an x86_64 Python runs on ARM, too
        machine = sysconfig.get_platform().removeprefix("win-")
    glibc = macos = None
    if sys.platform == "linux":
        try:
            glibc = first_two((os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2])
        except (AttributeError, ValueError):  # another C library does not know the name
            glibc = None
    if sys.platform == "darwin":
        macos = first_two(platform.mac_ver()[0])
    return sys.platform, machine, 64 if sys.maxsize > 2**32 else 32, glibc, macos


def first_two(version: str) -> tuple[int, int] | None:
    """Return major and minor of "2.36" or "14.5.1"; None for text that is no version."""
    numbers = [*version.split("."), "0"]
    if not (numbers[0].isdecimal() and numbers[1].isdecimal()):
        return None
    return int(numbers[0]), int(numbers[1])


# ----------------------------------------------------------------------------------------------- the set-up


def wanted_stamp(torch_index: str) -> dict[str, str]:
    """Everything a finished `.venv` depends on. Equal stamps: nothing to do."""
    stamp = {"folder": str(ROOT), "python": sys.version.split()[0], "torch_index": torch_index}
    for name in ("pyproject.toml", CONSTRAINTS):
        stamp[name] = hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
    return stamp


def read_stamp() -> dict[str, str] | None:
    """The stamp of the set-up in `.venv`, or None if there is no finished one."""
    try:
        stamp = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return stamp if isinstance(stamp, dict) and PYTHON.exists() else None


def chosen_index(argument: str | None) -> str:
    """The index to take torch from ("" is pip's own): this command's, else the one chosen before."""
    if argument is None:
        return INDEX.read_text(encoding="utf-8") if INDEX.exists() else ""
    if argument != "default" and "://" not in argument:
        raise SetupError(
            f"--torch-index needs a URL such as {CPU_INDEX}, or the word default, not {argument!r}."
        )
    return "" if argument == "default" else argument


def set_up(torch_index: str, lock: IO[str]) -> None:
    """Make `.venv` complete: bring a finished one up to date, or start afresh."""
    start = time.monotonic()
    wanted, old = wanted_stamp(torch_index), read_stamp()
    if old == wanted:  # another course.py did it while this one waited for the lock
        return
    STAMP.unlink(missing_ok=True)
    INDEX.write_text(torch_index, encoding="utf-8")
    if not old or any(old.get(key) != wanted[key] for key in ("folder", "python", "torch_index")):
        clear(VENV)
        check_machine(torch_index)
        show("1/3  Making a Python environment in .venv, so that nothing else on this machine changes")
        run_step([sys.executable, "-m", "venv", str(VENV)], lock)
    show(f"2/3  Installing the course's packages, at the exact versions in {CONSTRAINTS}")
    pip = [str(PYTHON), "-I", "-m", "pip", "install", "--no-input", "--constraint", CONSTRAINTS]
    if torch_index:
        run_step([*pip, "--no-deps", "--index-url", torch_index, "torch"], lock)
    run_step([*pip, "--editable", REQUIREMENT], lock)
    partial = STAMP.with_suffix(".part")
    partial.write_text(json.dumps(wanted, indent=1), encoding="utf-8")
    partial.replace(STAMP)
    show(f"     Set up in {time.monotonic() - start:.0f} s.")


def clear(folder: Path) -> None:
    """Empty `.venv`, but for the lock that is held and the chosen index."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path not in (LOCK, INDEX):
            path.unlink()


def check_machine(torch_index: str) -> None:
    """Find what would make the set-up fail, before it starts; announce a large download."""
    if not (importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv")):
        raise SetupError(
            "this Python cannot make environments (it has no ensurepip): on Debian and Ubuntu run\n"
            "    sudo apt install python3-venv\n"
            f"elsewhere install Python from python.org; {AGAIN}"
        )
    folders = os.environ.get("PIP_FIND_LINKS", "").split()  # a CPU build lying there is the one pip takes
    cpu_build = torch_index or any(any(Path(folder).glob("torch-*+cpu*.whl")) for folder in folders)
    large = sys.platform == "linux" and not cpu_build
    needed, free = (12 if large else 4), shutil.disk_usage(ROOT).free / 1e9
    smaller = f" (4 GB do with --torch-index {CPU_INDEX})" if large else ""
    if free < needed:
        raise SetupError(
            f"the set-up takes up to {needed} GB{smaller} and {ROOT} has {free:.1f} GB free: make room, or "
            f"move the course to another disk, {AGAIN}"
        )
    if sys.platform == "win32" and long_paths(str(ROOT)):
        show(long_paths(str(ROOT)))
    if large:
        show(
            "PyTorch for Linux brings NVIDIA's libraries: up to 4 GB to download, about 8 GB on disk.\n"
            "Without an NVIDIA GPU, press Ctrl-C and take its CPU build (0.2 GB) instead:\n"
            f"    {COMMAND} lab --torch-index {CPU_INDEX}"
        )


def long_paths(root: str) -> str:
    """Return a note for a folder under which Windows' limit of 259 characters is passed, or ""."""
    if len(root) + 1 + LONGEST_PATH <= 259:
        return ""
    return (
        f"Some paths under {root} will have more than 259 characters. If the set-up fails on one, move the\n"
        f"course to a folder whose path has at most {259 - 1 - LONGEST_PATH} characters, or enable long paths "
        "in Windows (as administrator):\n"
        "    reg add HKLM\\SYSTEM\\CurrentControlSet\\Control\\FileSystem /v LongPathsEnabled /t REG_DWORD /d 1 /f"
    )


def check_ours() -> None:
    """Raise SetupError unless `.venv` is absent, empty, or a folder of course.py's own: only those may be emptied."""
    if VENV.is_symlink() or (VENV.exists() and VENV.resolve() != VENV):
        raise SetupError(
            f"{VENV} is a link to {VENV.resolve()} and not made by course.py: remove the link, {AGAIN}"
        )
    if VENV.exists() and not (VENV.is_dir() and (LOCK.is_file() or not any(VENV.iterdir()))):
        raise SetupError(
            f"{VENV} is there and not made by course.py: rename it, or move the course elsewhere."
        )


@contextmanager
def only_one() -> Iterator[IO[str]]:
    """Hold the folder's lock; wait for it while another course.py has it."""
    check_ours()
    VENV.mkdir(exist_ok=True)
    with LOCK.open("a") as lock:
        if not lock_now(lock):
            show("Another course.py is setting up this folder: waiting for it. Ctrl-C stops waiting.")
            while not lock_now(lock):
                time.sleep(0.3)
        yield lock


def lock_now(lock: IO[str]) -> bool:
    """Take the lock if it is free."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(lock.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN, errno.EDEADLK):
            return False
        raise
    return True


# ------------------------------------------------------------------------------------------ one step, visibly


def show(text: str, end: str = "\n") -> None:
    """Print at once, also when the output goes to a file."""
    print(text, end=end, flush=True)


def run_step(command: list[str], lock: IO[str]) -> None:
    """Run a command, showing its latest line and the seconds so far; on failure raise SetupError."""
    environment = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_USER="0", PYTHONUNBUFFERED="1")
    options: dict[str, Any] = {} if os.name == "nt" else {"pass_fds": [lock.fileno()]}
    options.update(cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    terminal, width = sys.stdout.isatty(), shutil.get_terminal_size().columns - 1
    lines: list[str] = []
    start = shown = time.monotonic()
    options.update(stderr=subprocess.STDOUT, encoding="utf-8", errors="replace")
    process = subprocess.Popen(command, **options)
    try:
        reader = threading.Thread(target=read_lines, args=(process.stdout, lines), daemon=True)
        reader.start()
        while process.poll() is None:
            time.sleep(0.05)
            now = time.monotonic()
            if now - shown > (0.2 if terminal else 10):
                shown = now
                text = f"     {now - start:4.0f} s  {progress(lines)}"[:width]
                show("\r" + text.ljust(width) if terminal else text, end="" if terminal else "\n")
        reader.join(5)
    finally:
        process.terminate()  # Ctrl-C: take the step down with us
        process.wait()
        if terminal:
            show("\r" + " " * width, end="\r")
        with LOG.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n{''.join(lines)}\n")
    if process.returncode != 0:
        raise SetupError(explain("".join(lines)))


def progress(lines: list[str]) -> str:
    """What a step said last; while pip copies packages, which it does silently, how many are there."""
    for line in reversed(lines):
        if line.startswith("Installing collected packages:"):
            return f"Installing: {len(list(VENV.glob(INSTALLED)))} of {line.count(',') + 2} packages"
    said = [line.strip() for line in lines[-20:] if not line.startswith("WARNING")]
    return next((line for line in reversed(said) if line[:1].isalpha()), "working")


def read_lines(stream: IO[str], lines: list[str]) -> None:
    """Collect a process's output as it comes."""
    for line in stream:
        lines.append(line)  # one by one: the other thread looks meanwhile


AGAIN = "and run the same command again."
DISK_FULL = f"the disk is full: make room in {ROOT} and in the temporary folder, {AGAIN}"


def explain(output: str) -> str:
    """One sentence about a step that failed, from what it printed."""

    def said(*phrases: str) -> bool:
        return any(phrase in output for phrase in phrases)

    if said("No space left on device", "Disk quota exceeded"):
        return DISK_FULL
    if said("Retrying (", "Max retries exceeded", "Connection broken", "timed out"):
        return f"pip could not reach its package index: check the network and the proxy (HTTPS_PROXY) {AGAIN}"
    if said("No matching distribution", "ResolutionImpossible"):
        versions = "{}.{} to {}.{}".format(*OLDEST_PYTHON, *NEWEST_PYTHON)
        return f"a package has no build for this Python: use {versions}, or another --torch-index, {AGAIN}"
    if said("Permission denied", "Read-only file system"):
        return f"pip may not write in {VENV}: copy the course into a folder of your own and run it there."
    text = [line.strip() for line in output.splitlines() if line.strip()] or ["it printed nothing"]
    last = [line for line in text if line.lower().startswith("error")] or text
    return f"the set-up failed ({last[-1]}): look for the cause in {LOG} {AGAIN}"


# ------------------------------------------------------------------------------------------------ the command


def parse(arguments: list[str]) -> tuple[str, list[str], str | None]:
    """Split off the word and --torch-index; everything else belongs to the word."""
    index, rest = None, []
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if name == "--torch-index":
            index = value if equals else next(remaining, "")
        else:
            rest.append(argument)
    return (rest[0] if rest else "--help"), rest[1:], index


def main(arguments: list[str]) -> int:
    """Set up what is missing, then become `python -m coursekit COMMAND ...` in the course's environment."""
    for stream in (sys.stdout, sys.stderr):  # Windows writes files and pipes in a code page that lacks "→"
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    os.environ.setdefault("PYTHONUTF8", "1")  # the same for every Python that is started from here
    os.environ["COURSE_COMMAND"] = COMMAND  # for the commands' remedies
    word, rest, argument = parse(arguments)
    finished = read_stamp()
    if word in ("-h", "--help") or (not finished and (word == "help" or {"-h", "--help"} & set(rest))):
        show(HELP)
        return 0
    from coursekit.__main__ import check_command  # standard library only: a typo fails before pip runs

    problem = check_command(word)
    if problem:
        raise SetupError(problem)
    torch_index = chosen_index(argument)
    fresh = finished != wanted_stamp(torch_index)
    if fresh:
        problem = system_problem(*this_system())
        if problem:
            raise SetupError(problem)
        with only_one() as lock:
            set_up(torch_index, lock)
        subprocess.call([str(PYTHON), "-m", "paged_ref", "warm-up"])
        show("3/3  Fetching the model, once, into this user's cache")
    asks_for_help = bool({"-h", "--help"} & set(rest))
    if (fresh or (word in NEEDS_MODEL and not asks_for_help)) and subprocess.call(
        [str(PYTHON), "-m", "paged_ref.weights"]
    ) != 0:
        show("The model is missing: chapters 0 and 7 need it; the next start tries to fetch it again.")
    command = [str(PYTHON), "-m", "coursekit", word, *rest]
    if os.name != "nt":
        os.execv(command[0], command)
    return subprocess.call(command)


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
        show("", end="")
        sys.exit(code)
    except KeyboardInterrupt:
        print("\nStopped; the same command continues from here.", file=sys.stderr)
        sys.exit(130)
    except SetupError as stop:
        sys.exit(f"course.py: {stop}")
    except BrokenPipeError:  # `help | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            sys.exit(f"course.py: {DISK_FULL}")
        sys.exit(f"course.py: {error}: the course writes in {VENV}; copy it to a folder of your own.")
