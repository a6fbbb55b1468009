"""Ways to get points without an answer, and ways to harm the grader. Each is tried; none works.

Every cheat is the answer to exercise 2.1, where right answers would earn 4 points, beside a right answer to 2.4, which
must keep its 5: what a cheat does stays in its own sandbox.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coursekit import ROOT
from coursekit.checks.answers import LocalHost
from coursekit.checks.framework import exercise
from coursekit.grade.judge import Judge, StudentResult
from coursekit.grade.submission import read_submission

from tests.coursekit.grading import BOOK, RIGHT, notebook, write

LINUX = os.uname().sysname == "Linux"
# What the cheats steal, if they can: any text in which the solution stands.
STEAL = """
def learn(text):
    global slot
    source = "\\n".join(line.strip() for line in text.replace('\\\\n', '\\n').splitlines() if "blocks[i // block_size]" in line)
    line = source.splitlines()[0].strip(' ",')
    exec("def slot(blocks, i, block_size):\\n    " + line, globals())
"""
FILES = (
    "solutions/02_block_table.ipynb",
    "curriculum/exercises/02_block_table.py",
    "curriculum/mistakes/02/2.3.py",
)
READ = {
    "open": "learn(open(PATH).read())",
    "os-open": "import os\nlearn(os.read(os.open(PATH, os.O_RDONLY), 100000).decode())",
    "pathlib": "from pathlib import Path\nlearn(Path(PATH).read_text())",
    "loader": "from importlib.machinery import SourceFileLoader as L\nlearn(L('x', PATH).get_data(PATH).decode())",
    "numpy": "import numpy\nlearn(bytes(numpy.fromfile(PATH, dtype='u1')).decode())",
    "linecache": "import linecache\nlearn(''.join(linecache.getlines(PATH)))",
    "through-proc": "learn(open('/proc/self/root' + PATH).read())",
    "chdir": "import os\nos.chdir(os.path.dirname(PATH))\nlearn(open(os.path.basename(PATH)).read())",
    "subprocess": "import subprocess\nlearn(subprocess.run(['cat', PATH], capture_output=True, text=True).stdout)",
    "fork-exec": "import os\nr, w = os.pipe()\nif os.fork() == 0:\n    os.dup2(w, 1)\n    os.execv('/bin/cat', ['cat', PATH])\n"
    "os.close(w)\nlearn(os.fdopen(r).read())",
    "hook-blinded": "import gc\nfor f in gc.get_objects():\n    if getattr(f, '__qualname__', '') == '_audit_hook.<locals>.hook':\n"
    "        for c in f.__closure__:\n            c.cell_contents = '/nowhere' if isinstance(c.cell_contents, str) else c.cell_contents\n"
    "learn(open(PATH).read())",
}
CHEATS = {
    "prints-what-the-check-prints": "print('Exercise 2.1: 4 of 4 points. All right.')",
    "replaces-the-check": "import sys, types\nfake = types.ModuleType('coursekit.checks')\nfake.check = lambda *a: print('All right')\n"
    "sys.modules['coursekit.checks'] = sys.modules['coursekit'] = fake",
    "imports-the-check": "import coursekit.checks.chapter_02 as c\nc._slots = lambda *a: None\nc.SLOT.parts.clear()",
    "imports-the-reference": "import paged_ref.block_table\nfrom paged_ref import BlockTable\n"
    "def slot(blocks, i, block_size):\n    t = BlockTable.__new__(BlockTable)\n    return t.slot(i)",
    "always-equal": "class Yes(int):\n    __eq__ = __ge__ = __le__ = lambda self, other: True\n    __hash__ = int.__hash__\n"
    "def slot(blocks, i, block_size):\n    return Yes(0)",
    "an-object-that-agrees": "class Yes:\n    def __eq__(self, other): return True\n    def is_integer(self): return True\n"
    "def slot(*a):\n    return Yes()",
    "patches-builtins": "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.any = lambda *a: False\n"
    "def slot(*a):\n    return 0",
    "patches-random": "import random\nrandom.Random = lambda seed: None\nrandom.seed(0)\ndef slot(*a):\n    return 0",
    "exits": "import sys\nsys.exit(0)",
    "exits-hard": "import os\nos._exit(0)",
    "exits-when-called": "import os\ndef slot(*a):\n    os._exit(0)",
    "raises-system-exit-when-called": "def slot(*a):\n    raise SystemExit(0)",
    "kills-its-parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "kills-everyone": "import os\nos.kill(-1, 9)",
    "walks-the-frames": "import sys\nf = sys._getframe()\nwhile f:\n    for v in list(f.f_locals.values()):\n        if hasattr(v, 'parts'):\n"
    "            v.parts.clear()\n        if hasattr(v, 'passed'):\n            v.passed = True\n    f = f.f_back\n",
    "answers-before-it-is-asked": "import os, struct, json\nm = json.dumps({'value': 0, 'earned': 4, 'passed': True}).encode()\n"
    "for fd in range(3, 64):\n    try:\n        os.write(fd, (struct.pack('!I', len(m)) + m) * 50)\n    except OSError:\n        pass\n",
    "floods-the-socket": "import os\nfor fd in range(3, 64):\n    try:\n        os.write(fd, b'\\xff' * 100000)\n    except OSError:\n        pass\n",
    "sends-a-pickle": "import pickle, os\nclass P:\n    def __reduce__(self): return (os.system, ('true',))\n"
    "def slot(*a):\n    return pickle.dumps(P())",
    "patches-the-encoder": "import sys, json\njson.dumps = lambda *a, **k: '{\"value\": true}'\n",
    "a-float-that-is-nan": "def slot(*a):\n    return float('nan')",
    "reads-memory-of-its-parent": "import os\ndata = open(f'/proc/{os.getppid()}/mem', 'rb').read(100)",
    "reads-the-environment": "import os\nos.listdir('/proc')\nopen('/proc/self/environ').read()",
    "ctypes": "import ctypes\nctypes.CDLL(None).system(b'true')",
    "opens-a-socket": "import socket\nsocket.create_connection(('127.0.0.1', 9))",
    "edits-the-report": f"open({str(ROOT / 'report/grades.json')!r}, 'w').write('x')",
    "leaves-a-file": f"open({str(ROOT / 'left.txt')!r}, 'w').write('x')",
    "raises-the-limits": "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40))",
}


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    made = Judge(BOOK, 5, seconds=3)
    yield made
    made.close()


def grade(judge: Judge, folder: Path, source: str) -> StudentResult:
    path = write(folder / "02_block_table.ipynb", notebook({"2.1": source, "2.4": RIGHT["2.4"]}))
    return judge.grade(read_submission(path, "x", BOOK))


def earned(result: StudentResult) -> tuple[int, int]:
    return result.exercises["2.1"].verdict.earned, result.exercises["2.4"].verdict.earned


@pytest.mark.parametrize("source", CHEATS.values(), ids=CHEATS)
def test_a_cheat_earns_nothing_and_harms_nothing(source: str, judge: Judge, tmp_path: Path) -> None:
    stub = "" if "def slot" in source else "\n\ndef slot(blocks, i, block_size):\n    return 0\n"
    assert earned(grade(judge, tmp_path, source + stub)) == (0, 5)
    assert not (ROOT / "left.txt").exists()


@pytest.mark.parametrize("file", FILES[:2])
@pytest.mark.parametrize("way", READ)
def test_the_solution_cannot_be_read(way: str, file: str, judge: Judge, tmp_path: Path) -> None:
    if way == "hook-blinded" and not LINUX:
        pytest.skip(
            "without Landlock the audit hook is the only guard of the files, and this cheat goes around it"
        )
    source = STEAL + READ[way].replace("PATH", repr(str(ROOT / file)))
    assert earned(grade(judge, tmp_path, source)) == (0, 5)


def test_the_ways_to_read_it_would_work_where_nothing_stops_them() -> None:
    for way in ("open", "os-open", "pathlib", "loader", "numpy", "linecache", "subprocess"):
        for file in FILES[:2]:
            namespace: dict[str, object] = {}
            exec(STEAL + READ[way].replace("PATH", repr(str(ROOT / file))), namespace)
            assert exercise("2.1").run([LocalHost().proxy(namespace["slot"], "slot")], 1).passed


def test_with_the_right_answer_beside_the_mischief_the_points_stand(judge: Judge, tmp_path: Path) -> None:
    """So a cheat's zero above is not merely the price of a crash."""
    mischief = "import builtins, random\nrandom.seed(0)\nbuiltins.isinstance\nprint('All right')\n"
    assert earned(grade(judge, tmp_path, mischief + RIGHT["2.1"])) == (4, 5)


def test_a_later_answer_cannot_help_an_earlier_one(judge: Judge, tmp_path: Path) -> None:
    data = notebook({"2.4": RIGHT["2.1"] + "\n" + RIGHT["2.4"] + "\nimport builtins\nbuiltins.slot = slot\n"})
    result = judge.grade(read_submission(write(tmp_path / "a.ipynb", data), "x", BOOK))
    assert earned(result) == (0, 5)


def test_nothing_is_left_running(judge: Judge, tmp_path: Path) -> None:
    source = "import threading, time\ndef spin():\n    while True:\n        time.sleep(0.01)\n" + RIGHT["2.1"]
    source += "\nfor _ in range(3):\n    threading.Thread(target=spin).start()\n"
    before = threading.active_count()
    assert earned(grade(judge, tmp_path, source)) == (4, 5)
    assert threading.active_count() == before
    assert judge.zygote.process is not None
    children = Path(f"/proc/{judge.zygote.process.pid}/task/{judge.zygote.process.pid}/children")
    deadline = time.monotonic() + 2
    while children.exists() and children.read_text().split() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not children.exists() or children.read_text().split() == []


@pytest.mark.skipif(not LINUX, reason="Landlock and seccomp are Linux's")
def test_the_kernel_s_layers_are_in_force(judge: Judge, tmp_path: Path) -> None:
    """The tests above would pass with the audit hook alone; the course promises the kernel's layers on Linux."""
    assert grade(judge, tmp_path, RIGHT["2.1"]).layers == ["limits", "landlock", "seccomp", "audit hook"]
