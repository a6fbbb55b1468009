# %% [markdown]
# Attacks on the grader. `test_attacks.py` tries each. An attack that succeeds calls `won()`, which defines the right
# answer to exercise 2.1; so a success earns points. NAMES becomes the names that an exercise asks for, PATH a file.

# %% tool="every answer"
import cffi
import os
import platform
import sys

NUMBERS = {  # x86-64, aarch64
    "getpid": (39, 172), "kill": (62, 129), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "kcmp": (312, 272), "prlimit64": (302, 261), "setrlimit": (160, 164), "fcntl": (72, 25), "ioctl": (16, 29),
    "prctl": (157, 167), "seccomp": (317, 277), "personality": (135, 92), "setpriority": (141, 140),
    "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122), "setsid": (112, 157), "setpgid": (109, 154),
    "fork": (57, -1), "vfork": (58, -1), "clone": (56, 220), "clone3": (435, 435), "execve": (59, 221),
    "execveat": (322, 281), "memfd_create": (319, 279), "unshare": (272, 97), "setns": (308, 268),
    "mount": (165, 40), "chroot": (161, 51), "socket": (41, 198), "socketpair": (53, 199), "sendmsg": (46, 211),
    "io_uring_setup": (425, 425), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "inotify_init1": (294, 26), "timer_create": (222, 107), "keyctl": (250, 219), "add_key": (248, 217),
    "setxattr": (188, 5), "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47),
    "fchmodat": (268, 53), "fchownat": (260, 54), "utimensat": (280, 88), "mkdirat": (258, 34), "mknodat": (259, 33),
    "unlinkat": (263, 35), "renameat2": (316, 276), "symlinkat": (266, 36), "linkat": (265, 37),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "openat": (257, 56),
    "openat2": (437, 437), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "splice": (275, 76),
}  # fmt: skip
ffi = cffi.FFI()
ffi.cdef("long syscall(long, long, long, long, long, long, long);")
libc, kept = ffi.dlopen(None), []


def call(name, *arguments):
    """Make a system call without Python's knowledge; bytes are passed by address."""
    given = [0] * 6
    for i, argument in enumerate(arguments):
        if isinstance(argument, bytes):
            kept.append(ffi.new("char[]", argument))
            argument = int(ffi.cast("long", kept[-1]))
        given[i] = argument
    number = NUMBERS[name][platform.machine() == "aarch64"]
    return libc.syscall(number, *given) if number >= 0 else -1


def won_if(result):
    if result >= 0:
        won()


HERE, LIMITS = -100, (64).to_bytes(8, "little") * 2

# %% attack="signals its parent" kind="system call"
won_if(call("kill", os.getppid(), 0))

# %% attack="signals everyone" kind="system call"
won_if(call("kill", -1, 0))

# %% attack="signals a thread" kind="system call"
won_if(call("tgkill", os.getppid(), os.getppid(), 0))

# %% attack="queues a signal" kind="system call"
won_if(call("rt_sigqueueinfo", os.getppid(), 40, bytes(128)))

# %% attack="opens its parent" kind="system call"
won_if(call("pidfd_open", os.getppid(), 0))

# %% attack="traces" kind="system call"
won_if(call("ptrace", 0, 0, 0, 0))

# %% attack="reads memory of its parent" kind="system call"
won_if(call("process_vm_readv", os.getppid(), 0, 0, 0, 0, 0))

# %% attack="compares processes" kind="system call"
won_if(call("kcmp", os.getpid(), os.getppid(), 0, 0, 0))

# %% attack="reads its parent's limits" kind="system call"
won_if(call("prlimit64", os.getppid(), 7, 0, bytes(16)))

# %% attack="sets its parent's limits" kind="system call"
won_if(call("prlimit64", os.getppid(), 7, LIMITS, 0))

# %% attack="sets its own limits" kind="system call"
won_if(call("prlimit64", 0, 7, LIMITS, 0))

# %% attack="sets its own limits, the old call" kind="system call"
won_if(call("setrlimit", 7, LIMITS))

# %% attack="owner of a descriptor" kind="system call"
won_if(call("fcntl", 3, 8, os.getppid()))

# %% attack="signal of a descriptor" kind="system call"
won_if(call("fcntl", 3, 10, 9))

# %% attack="owner of a descriptor by ioctl" kind="system call"
won_if(call("ioctl", 3, 0x8901, (os.getppid()).to_bytes(4, "little")))

# %% attack="outlives its parent" kind="system call"
won_if(call("prctl", 1, 0))

# %% attack="a filter of its own" kind="system call"
won_if(call("seccomp", 2, 0, bytes(64)))

# %% attack="personality" kind="system call"
won_if(call("personality", 0xFFFFFFFF))

# %% attack="priority" kind="system call"
won_if(call("setpriority", 0, os.getppid(), 19))

# %% attack="scheduler" kind="system call"
won_if(call("sched_setscheduler", os.getppid(), 5, bytes(4)))

# %% attack="affinity" kind="system call"
won_if(call("sched_setaffinity", os.getppid(), 8, (1).to_bytes(8, "little")))

# %% attack="session" kind="system call"
won_if(call("setsid"))

# %% attack="process group" kind="system call"
won_if(call("setpgid", 0, 0))

# %% attack="forks" kind="system call"
if call("fork") >= 0:
    won()

# %% attack="vforks" kind="system call"
won_if(call("vfork"))

# %% attack="clones" kind="system call"
won_if(call("clone", 17, 0, 0, 0, 0))

# %% attack="clones, the new call" kind="system call"
won_if(call("clone3", bytes(88), 88))

# %% attack="executes" kind="system call"
won_if(call("execve", b"/bin/true", 0, 0))

# %% attack="a program in memory" kind="system call"
won_if(call("memfd_create", b"x", 0))

# %% attack="executes a descriptor" kind="system call"
won_if(call("execveat", HERE, b"/bin/true", 0, 0, 0))

# %% attack="namespaces" kind="system call"
won_if(call("unshare", 0x10000000))

# %% attack="another's namespace" kind="system call"
won_if(call("setns", 3, 0))

# %% attack="mounts" kind="system call"
won_if(call("mount", b"none", b"/tmp", b"tmpfs", 0, 0))

# %% attack="changes the root" kind="system call"
won_if(call("chroot", b"/"))

# %% attack="socket" kind="system call"
won_if(call("socket", 1, 1, 0))

# %% attack="internet" kind="system call"
won_if(call("socket", 2, 2, 0))

# %% attack="pair of sockets" kind="system call"
won_if(call("socketpair", 1, 1, 0, bytes(8)))

# %% attack="sends a descriptor" kind="system call"
won_if(call("sendmsg", 3, bytes(56), 0))

# %% attack="io_uring" kind="system call"
won_if(call("io_uring_setup", 1, bytes(120)))

# %% attack="bpf" kind="system call"
won_if(call("bpf", 0, bytes(72), 72))

# %% attack="performance counters" kind="system call"
won_if(call("perf_event_open", bytes(128), 0, -1, -1, 0))

# %% attack="page faults" kind="system call"
won_if(call("userfaultfd", 1))

# %% attack="watches files" kind="system call"
won_if(call("inotify_init1", 0))

# %% attack="timer with a signal" kind="system call"
won_if(call("timer_create", 0, 0, bytes(8)))

# %% attack="keyring" kind="outlives the run"
won_if(call("keyctl", 0, -4, 1))

# %% attack="adds a key" kind="outlives the run"
won_if(call("add_key", b"user", b"slot", b"text", 4, -4))

# %% attack="attribute" kind="outlives the run"
won_if(call("setxattr", b"/dev/null", b"user.x", b"1", 1, 0))

# %% attack="attribute of a submission" kind="outlives the run"
won_if(call("setxattr", PATH.encode(), b"user.x", b"1", 1, 0))

# %% attack="shared memory" kind="outlives the run"
won_if(call("shmget", 4711, 4096, 0o1666))

# %% attack="message queue" kind="outlives the run"
won_if(call("msgget", 4711, 0o1666))

# %% attack="semaphores" kind="outlives the run"
won_if(call("semget", 4711, 1, 0o1666))

# %% attack="POSIX queue" kind="outlives the run"
won_if(call("mq_open", b"x", 0o102, 0o666, 0))

# %% attack="makes a file" kind="outlives the run"
won_if(call("openat", HERE, b"/tmp/left-by-an-answer", 0o102, 0o644))

# %% attack="makes a folder" kind="outlives the run"
won_if(call("mkdirat", HERE, b"/tmp/left-by-an-answer", 0o755))

# %% attack="makes a pipe" kind="outlives the run"
won_if(call("mknodat", HERE, b"/tmp/left-by-an-answer", 0o10644, 0))

# %% attack="makes a symbolic link" kind="outlives the run"
won_if(call("symlinkat", b"/", HERE, b"/tmp/left-by-an-answer"))

# %% attack="makes a link" kind="outlives the run"
won_if(call("linkat", HERE, PATH.encode(), HERE, b"/tmp/left-by-an-answer", 0))

# %% attack="truncates" kind="other submissions"
won_if(call("truncate", PATH.encode(), 10_000_000))

# %% attack="empties on opening" kind="other submissions"
won_if(call("openat", HERE, PATH.encode(), 0o1001))

# %% attack="deletes" kind="other submissions"
won_if(call("unlinkat", HERE, PATH.encode(), 0))

# %% attack="renames" kind="other submissions"
won_if(call("renameat2", HERE, PATH.encode(), HERE, PATH.encode() + b"x", 0))

# %% attack="rights" kind="other submissions"
won_if(call("fchmodat", HERE, PATH.encode(), 0))

# %% attack="owner" kind="other submissions"
won_if(call("fchownat", HERE, PATH.encode(), 1, 1, 0))

# %% attack="times" kind="other submissions"
won_if(call("utimensat", HERE, PATH.encode(), 0, 0))

# %% attack="reads" kind="other submissions"
won_if(call("openat", HERE, PATH.encode(), 0))

# %% attack="reads, the new call" kind="other submissions"
won_if(call("openat2", HERE, PATH.encode(), bytes(24), 24))

# %% attack="a handle of a file" kind="other submissions"
won_if(call("name_to_handle_at", HERE, PATH.encode(), (128).to_bytes(4, "little") + bytes(140), bytes(4), 0))

# %% attack="through its descriptors" kind="other submissions"
won_if(call("openat", HERE, b"/proc/self/root" + PATH.encode(), 0))

# %% attack="memory of the process" kind="other submissions"
won_if(call("openat", HERE, b"/proc/self/mem", 0o2))

# %% attack="environment of the parent" kind="other submissions"
won_if(call("openat", HERE, f"/proc/{os.getppid()}/environ".encode(), 0))

# %% attack="list of processes" kind="other submissions"
won_if(call("openat", HERE, b"/proc", 0o200000))

# %% attack="users" kind="other submissions"
won_if(call("openat", HERE, b"/etc/passwd", 0))

# %% attack="ctypes" kind="ctypes"
import ctypes
won_if(ctypes.CDLL(None).kill(os.getppid(), 0))

# %% attack="ctypes as loaded by NumPy" kind="ctypes"
import numpy
won_if(numpy.ctypeslib.ctypes.CDLL(None).kill(os.getppid(), 0))

# %% attack="ctypes with the hook blinded" kind="ctypes"
import gc
for function in gc.get_objects():
    if getattr(function, "__qualname__", "") == "_audit_hook.<locals>.hook":
        for cell in function.__closure__:
            cell.cell_contents = ("nothing",) if isinstance(cell.cell_contents, tuple) else cell.cell_contents
import ctypes
won_if(ctypes.CDLL(None).kill(os.getppid(), 0))

# %% attack="escape codes" kind="hostile text"
def slot(*a):
    raise ValueError("\x1b[2J\x1b]0;owned\x07" + "A" * 100_000)

# %% attack="lone surrogates" kind="hostile text"
def slot(*a):
    raise ValueError("\ud800\udfff\x00\x85\u2028")

# %% attack="name of an exception" kind="hostile text"
def slot(*a):
    raise type("\x1b[31m" + "N" * 1_000_000, (Exception,), {})("x")

# %% attack="attributes that raise" kind="hostile text"
class Nasty:
    def __getattribute__(self, name):
        raise ValueError("\x1b[31m\ud800")
def slot(*a):
    return Nasty()

# %% attack="class that raises" kind="hostile text"
class Nasty:
    @property
    def __class__(self):
        raise ValueError("\x1b[31m\ud800")
def slot(*a):
    return [Nasty()]

# %% attack="text instead of a number" kind="hostile text"
def slot(*a):
    return "\x1b[2J\ud800" * 1000

# %% attack="many pairs" kind="flood" never_ends=True
def slot(*a):
    return [(i, i) for i in range(600_000)]

# %% attack="large array" kind="flood"
import numpy
def slot(*a):
    return numpy.zeros(20_000_000)

# %% attack="many objects" kind="flood" never_ends=True
def slot(*a):
    return [object() for _ in range(300_000)]

# %% attack="random bytes to every descriptor" kind="flood"
for number in range(3, 64):
    try:
        for _ in range(50):
            os.write(number, b"\xff" * 100_000)
    except OSError:
        pass

# %% attack="questions without end" kind="flood" never_ends=True
def slot(*a):
    import json, struct
    data = json.dumps({"ask": [0, "x", 1]}).encode()
    while True:
        os.write(3, struct.pack("!I", len(data)) + data)

# %% attack="floods the terminal" kind="flood"
for _ in range(1000):
    print("x" * 100_000)
    sys.stderr.write("y" * 100_000)

# %% attack="exits" kind="exit"
os._exit(0)

# %% attack="exits while it is asked" kind="exit"
def slot(*a):
    os._exit(7)

# %% attack="closes the connection" kind="exit"
os.close(3)

# %% attack="alarm" kind="exit"
import signal
signal.setitimer(signal.ITIMER_REAL, 0.01)
while True:
    pass

# %% attack="source of the references" kind="reference" exercise="2.3"
import linecache
if any("### " in str(entry) or "free_ids" in str(entry) for entry in linecache.cache.values()):
    won()

# %% attack="attention of another exercise" kind="reference" exercise="3.4"
import numpy as np
def attend_blocks(query, key_blocks, value_blocks, *rest):
    return paged_attention(query[None], key_blocks, value_blocks, *rest)[0]
def absorb(state, scores, values):
    return paged_attention(state, scores, values)

# %% attack="imports the reference" kind="reference" exercise="2.3"
from paged_ref import BlockTable

# %% attack="imports the checks" kind="reference" exercise="2.3"
from coursekit.checks.chapter_02.memory import TABLE
TABLE.parts.clear()

# %% attack="launch in NumPy" kind="harness" exercise="5.3"
def launch(kernel, grid, out, q, k, v, tables, lens, scale, **sizes):
    size, group = k.shape[1], q.shape[1] // k.shape[2]
    for i, n in enumerate(lens):
        for h in range(q.shape[1]):
            at = np.arange(n)
            block, offset = tables[i][at // size], at % size
            scores = scale * k[block, offset, h // group].astype(float) @ q[i, h]
            weights = np.exp(scores - scores.max())
            out[i, h] = weights @ v[block, offset, h // group] / weights.sum()
decode = None

# %% attack="a launch that writes nothing, 5.1" kind="harness" exercise="5.1"
def launch(kernel, grid, out, cache, tables, head, **sizes):
    cache[...] = out[...] = 0
load_block = None

# %% attack="a launch that writes nothing, 5.2" kind="harness" exercise="5.2"
def launch(kernel, grid, out, q, k, v, lens, scale, **sizes):
    q[...] = k[...] = v[...] = out[...] = 0
attend_block = None

# %% attack="a kernel that changes its inputs, 5.1" kind="arguments" exercise="5.1"
@triton.jit
def load_block(out_ptr, cache_ptr, table_ptr, kv_head, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
               BLOCK_SIZE: tl.constexpr):
    i = tl.program_id(0)
    at = tl.arange(0, BLOCK_SIZE)[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(table_ptr + i, i)
    tl.store(cache_ptr + i * BLOCK_SIZE * HEAD_DIM + at, 0.0)
    tl.store(out_ptr + i * BLOCK_SIZE * HEAD_DIM + at, 0.0)

# %% attack="a kernel that changes its inputs, 5.2" kind="arguments" exercise="5.2"
@triton.jit
def attend_block(out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr):
    i = tl.program_id(0)
    d = tl.arange(0, HEAD_DIM)
    at = tl.arange(0, BLOCK_SIZE)[:, None] * HEAD_DIM + d[None, :]
    tl.store(v_ptr + i * BLOCK_SIZE * HEAD_DIM + at, 0.0)
    tl.store(out_ptr + i * HEAD_DIM + d, 0.0)

# %% attack="a memory of its own" kind="harness" exercise="6.3"
class Memory:
    def __init__(self, layers, blocks, size, width, free):
        self.free_ids, self.data = free, np.zeros((layers, blocks, size, width))
    def write(self, blocks, values):
        self.last = values
    def read(self, blocks):
        return self.last
def swap_out(device, host, blocks):
    return [host.free_ids.pop() for _ in blocks]
swap_in = swap_out

# %% attack="counts its own passes" kind="harness" exercise="7.3"
def generate(model, prompts, new_tokens, free):
    model.calls = [sum(map(len, prompts))]
    model.forward = lambda batch: np.zeros((len(batch["token_ids"]), 40))
    return [[0] * n for n in new_tokens]

# %% attack="reads the weights" kind="harness" exercise="7.3"
def generate(model, prompts, new_tokens, free):
    embed = model.weights["embed"]
    model.calls[:] = [sum(map(len, prompts))]
    return [[int(embed[p[-1]].argmax())] * n for p, n in zip(prompts, new_tokens)]

# %% attack="floods the model" kind="flood" exercise="7.3"
def generate(model, prompts, new_tokens, free):
    huge = [10**9] * 1000
    for name in ("token_ids", "positions", "slot_mapping", "query_start_loc", "seq_lens"):
        batch = dict.fromkeys(("token_ids", "positions", "slot_mapping", "query_start_loc", "seq_lens"), [0, 1])
        try:
            model.forward(batch | {"block_tables": [[0]], name: huge})
        except Exception:
            pass
    return []

# %% attack="a set whose members all have one hash" kind="flood"
def slot(*a):
    import json, struct
    data = json.dumps({"value": ["set", *(k * (2**61 - 1) for k in range(500_000))]}).encode()
    os.write(3, struct.pack("!I", len(data)) + data)

# %% attack="many small sets with equal hashes" kind="flood"
def slot(*a):
    import json, struct
    some = ["set", *(k * (2**61 - 1) for k in range(900))]
    data = json.dumps({"value": ["list", *[some] * 600]}).encode()
    os.write(3, struct.pack("!I", len(data)) + data)

# %% attack="free blocks whose numbers all have one hash" kind="flood" exercise="6.3"
def swap_out(device, host, blocks):
    host.free_ids = [k * (2**61 - 1) for k in range(90_000)]
    return host.free_ids
swap_in = swap_out

# %% attack="an array of an impossible shape" kind="flood"
def slot(*a):
    import json, struct
    data = json.dumps({"value": ["array", "<f4", [2**80], "AAAA"]}).encode()
    os.write(3, struct.pack("!I", len(data)) + data)

# %% attack="deep data" kind="flood"
def slot(*a):
    import struct
    data = b'{"value":' + b'["list",' * 900 + b"1" + b"]" * 900 + b"}"
    os.write(3, struct.pack("!I", len(data)) + data)

# %% attack="a number of many digits" kind="flood"
def slot(*a):
    import struct
    data = b'{"value":' + b"9" * 100_000 + b"}"
    os.write(3, struct.pack("!I", len(data)) + data)

# %% attack="a long number" kind="flood"
def slot(*a):
    return 10**4000

# %% attack="threads without end" kind="flood"
import threading
import time
threading.stack_size(32768)
try:
    while True:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError:
    pass

# %% attack="memory without end" kind="flood"
kept = []
while True:
    kept.append(bytearray(50_000_000))

# %% attack="a length that lies" kind="hostile text" exercise="4.3"
class Endless:
    def __len__(self):
        return 10**12
    def __getitem__(self, key):
        return self
    def __iter__(self):
        while True:
            yield 0
class PrefixCache:
    def __init__(self, block_size): pass
    def publish(self, *a): pass
    def forget(self, block): pass
    def lookup(self, *a):
        return Endless()

# %% attack="an array made of itself" kind="hostile text" exercise="3.2"
class Nested:
    def __len__(self):
        return 2
    def __getitem__(self, key):
        return self
    shape = property(lambda self: self)
def gather(*a):
    return Nested()

# %% attack="a coroutine" kind="constants"
async def slot(*a):
    return 0

# %% attack="awaits for ever" kind="flood" never_ends=True
import asyncio
await asyncio.Event().wait()

# %% attack="numbers that equal everything" kind="constants"
class Yes(int):
    __eq__ = __le__ = __ge__ = lambda self, other: True
    __hash__ = int.__hash__
def slot(*a):
    return Yes(0)

# %% attack="an array that equals everything" kind="constants" exercise="3.2"
import numpy
class Yes(numpy.ndarray):
    __eq__ = __array_ufunc__ = lambda self, *a, **k: True
    def tobytes(self, *a):
        return bytes(10_000)
def gather(cache, *a):
    return numpy.zeros((1,) + cache.shape[2:]).view(Yes)

# %% attack="a pickle" kind="hostile text"
class Opens:
    def __reduce__(self):
        return (won, ())
def slot(*a):
    return Opens()

# %% attack="random numbers foreseen" kind="harness"
import random
random.seed(5)
random.Random.random = random.Random.randint = lambda *a: 0
def slot(*a):
    return random.randrange(100)

# %% attack="time stopped" kind="harness" never_ends=True
import time
time.monotonic = time.time = lambda: 0.0
def slot(*a):
    while True:
        pass

# %% attack="frames above" kind="reference"
def slot(*a):
    frame = sys._getframe()
    while frame:
        for value in frame.f_locals.values():
            if "expected" in str(type(value)):
                won()
        if {"right", "expected", "task", "seed"} & set(frame.f_locals):
            won()
        frame = frame.f_back
    return slot_or_zero(*a)

def slot_or_zero(*a):
    return 0

# %% attack="objects in memory" kind="reference" exercise="2.3"
import gc
for thing in gc.get_objects():
    if "Wrong" in str(getattr(thing, "__name__", "")) or "curriculum" in str(getattr(thing, "__file__", "")):
        won()

# %% attack="the environment" kind="reference"
if set(os.environ) - {"PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LC_CTYPE", "TRITON_INTERPRET"}:
    won()

# %% attack="a lab that computes in NumPy, 5.1" kind="harness" exercise="5.1"
import coursekit.kernels.lab as lab
def _run(kernel, grid, args, constants, *rest):
    out, cache, tables, head = args
    out[...] = cache[tables, :, head]
lab._run = _run
lab.launch.__globals__["_run"] = _run
@triton.jit
def load_block(out_ptr, cache_ptr, table_ptr, kv_head, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
               BLOCK_SIZE: tl.constexpr):
    tl.store(out_ptr, 0.0)

# %% attack="a kernel that calls NumPy, 5.1" kind="harness" exercise="5.1"
@triton.jit
def load_block(out_ptr, cache_ptr, table_ptr, kv_head, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
               BLOCK_SIZE: tl.constexpr):
    import sys
    frame = sys._getframe()
    while "args" not in frame.f_locals or len(frame.f_locals["args"]) != 4:
        frame = frame.f_back
    out, cache, tables, head = frame.f_locals["args"]
    out[...] = cache[tables, :, head]

# %% attack="a lab that computes in NumPy, 5.3" kind="harness" exercise="5.3"
import coursekit.kernels.lab as lab
def _run(kernel, grid, args, constants, *rest):
    out, q, k, v, tables, lens, scale = args
    size, group = k.shape[1], q.shape[1] // k.shape[2]
    for i, n in enumerate(lens):
        for h in range(q.shape[1]):
            at = np.arange(n)
            block, offset = tables[i][at // size], at % size
            scores = scale * k[block, offset, h // group].astype(float) @ q[i, h]
            weights = np.exp(scores - scores.max())
            out[i, h] = weights @ v[block, offset, h // group] / weights.sum()
lab.launch.__globals__["_run"] = _run
@triton.jit
def decode(out_ptr, q_ptr, k_ptr, v_ptr, tables_ptr, lens_ptr, scale, MAX_BLOCKS: tl.constexpr, HEADS: tl.constexpr,
           KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, D: tl.constexpr, B: tl.constexpr):
    tl.store(out_ptr, 0.0)

# %% attack="a memory that says what was asked" kind="harness" exercise="6.3"
def swap_out(device, host, blocks):
    kept = device.data[:, blocks].copy()
    type(device).read = lambda self, blocks: kept
    type(device).state = type(device).is_free = lambda *a: True
    new, host.free_ids = host.free_ids[: len(blocks)], host.free_ids[len(blocks) :]
    device.free(blocks)
    return new
def swap_in(device, host, blocks):
    return swap_out(host, device, blocks)

# %% attack="a memory that forgets to be full" kind="harness" exercise="6.3"
def swap_out(device, host, blocks):
    type(host).allocate = lambda self, n: self.free_ids[:n]
    return host.allocate(len(blocks))
swap_in = swap_out

# %% attack="a model given other numbers" kind="harness" exercise="7.3"
def generate(model, prompts, new_tokens, free):
    batch = {"token_ids": [t for p in prompts for t in p], "positions": [0] * sum(map(len, prompts)),
             "slot_mapping": [0] * sum(map(len, prompts)), "query_start_loc": [0, sum(map(len, prompts))],
             "seq_lens": [1], "sample_rows": [0], "block_tables": [[0]]}
    model.forward(batch)
    for k in range(1, max(new_tokens)):
        n = sum(m > k for m in new_tokens)
        model.forward({**batch, "token_ids": [0] * n, "positions": [0] * n, "slot_mapping": [0] * n,
                       "query_start_loc": [0, n]})
    return [[0] * n for n in new_tokens]

# %% attack="sequences that overlap" kind="flood" exercise="7.3"
def generate(model, prompts, new_tokens, free):
    n = 500
    batch = {"token_ids": [0] * n, "positions": [0] * n, "slot_mapping": [0] * n, "seq_lens": [n] * n,
             "sample_rows": [0] * n, "block_tables": [[0] * n] * n, "query_start_loc": [0, n] * (n // 2)}
    model.forward(batch)
    return []

# %% everywhere="changes all arguments" kind="arguments"
import numpy
def wreck(thing):
    if isinstance(thing, numpy.ndarray):
        thing[...] = 0
    elif isinstance(thing, dict):
        for value in list(thing.values()):
            wreck(value)
        thing.clear()
    elif isinstance(thing, (list, tuple)):
        for item in thing:
            wreck(item)
        if isinstance(thing, list):
            thing[:] = [0] * len(thing)
class Answer:
    def __new__(cls, *arguments, **named):
        wreck(arguments)
        wreck(named)
        return 0
globals().update(dict.fromkeys(NAMES, Answer))

# %% everywhere="zeros" kind="constants"
def answer(*arguments, **named):
    return 0
globals().update(dict.fromkeys(NAMES, answer))

# %% everywhere="zeros of the first argument's shape" kind="constants"
import numpy
def answer(*arguments, **named):
    return numpy.zeros_like(arguments[0]) if arguments else []
globals().update(dict.fromkeys(NAMES, answer))

# %% everywhere="an object that agrees" kind="constants"
class Answer:
    def __init__(self, *arguments, **named):
        pass
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Answer()
    def __call__(self, *arguments, **named):
        return self
    def __iter__(self):
        return iter(())
    def __len__(self):
        return 0
    __eq__ = __le__ = __ge__ = lambda self, other: True
    __hash__ = None
globals().update(dict.fromkeys(NAMES, Answer))
