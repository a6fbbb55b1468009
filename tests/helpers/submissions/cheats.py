# %% [markdown]
# Ways to get points for exercise 2.1 without answering it, or to harm the grader. `test_grade_cheats.py` tries each. COURSE becomes the course's folder.

# %% cheat="prints-what-the-check-prints"
print('Exercise 2.1: 4 of 4 points. Everything passed.')

# %% cheat="replaces-the-check"
import sys, types
fake = types.ModuleType('coursekit.checks')
fake.check = lambda *a: print('Everything passed')
sys.modules['coursekit.checks'] = sys.modules['coursekit'] = fake

# %% cheat="imports-the-check"
import coursekit.checks.chapter_02 as c
c._slots = lambda *a: None
c.SLOT.parts.clear()

# %% cheat="imports-the-reference"
import paged_ref.blocks.block_table
from paged_ref import BlockTable
def slot(blocks, i, block_size):
    t = BlockTable.__new__(BlockTable)
    return t.slot(i)

# %% cheat="always-equal"
class Yes(int):
    __eq__ = __ge__ = __le__ = lambda self, other: True
    __hash__ = int.__hash__
def slot(blocks, i, block_size):
    return Yes(0)

# %% cheat="an-object-that-agrees"
class Yes:
    def __eq__(self, other): return True
    def is_integer(self): return True
def slot(*a):
    return Yes()

# %% cheat="patches-builtins"
import builtins
builtins.isinstance = lambda *a: True
builtins.any = lambda *a: False
def slot(*a):
    return 0

# %% cheat="patches-random"
import random
random.Random = lambda seed: None
random.seed(0)
def slot(*a):
    return 0

# %% cheat="exits"
import sys
sys.exit(0)

# %% cheat="exits-hard"
import os
os._exit(0)

# %% cheat="exits-when-called"
import os
def slot(*a):
    os._exit(0)

# %% cheat="raises-system-exit-when-called"
def slot(*a):
    raise SystemExit(0)

# %% cheat="kills-its-parent"
import os, signal
os.kill(os.getppid(), signal.SIGKILL)

# %% cheat="kills-everyone"
import os
os.kill(-1, 9)

# %% cheat="walks-the-frames"
import sys
f = sys._getframe()
while f:
    for v in list(f.f_locals.values()):
        if hasattr(v, 'parts'):
            v.parts.clear()
        if hasattr(v, 'passed'):
            v.passed = True
    f = f.f_back

# %% cheat="answers-before-it-is-asked"
import os, struct, json
m = json.dumps({'value': 0, 'earned': 4, 'passed': True}).encode()
for fd in range(3, 64):
    try:
        os.write(fd, (struct.pack('!I', len(m)) + m) * 50)
    except OSError:
        pass

# %% cheat="floods-the-socket"
import os
for fd in range(3, 64):
    try:
        os.write(fd, b'\xff' * 100000)
    except OSError:
        pass

# %% cheat="sends-a-pickle"
import pickle, os
class P:
    def __reduce__(self): return (os.system, ('true',))
def slot(*a):
    return pickle.dumps(P())

# %% cheat="patches-the-encoder"
import sys, json
json.dumps = lambda *a, **k: '{"value": true}'

# %% cheat="a-float-that-is-nan"
def slot(*a):
    return float('nan')

# %% cheat="reads-memory-of-its-parent"
import os
data = open(f'/proc/{os.getppid()}/mem', 'rb').read(100)

# %% cheat="reads-the-environment"
import os
os.listdir('/proc')
open('/proc/self/environ').read()

# %% cheat="ctypes"
import ctypes
ctypes.CDLL(None).system(b'true')

# %% cheat="opens-a-socket"
import socket
socket.create_connection(('127.0.0.1', 9))

# %% cheat="edits-the-report"
open('COURSE/report/grades.json', 'w').write('x')

# %% cheat="leaves-a-file"
open('COURSE/left.txt', 'w').write('x')

# %% cheat="raises-the-limits"
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, 1 << 40))
