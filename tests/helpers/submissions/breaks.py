# %% [markdown]
# Answers to exercise 2.1 that break, with the status (or one of several) and a part of the message that the student
# gets.

# %% breaks="syntax-error" status="crashed" says="SyntaxError"
def slot(:

# %% breaks="indent" status="crashed" says="line 2"
def slot(b, i, s):
return 1

# %% breaks="raises-at-once" status="crashed" says="ZeroDivisionError: division by zero (line 1: 1 / 0)"
1 / 0

# %% breaks="defines-nothing" status="crashed" says="does not define `slot`"
x = 1

# %% breaks="deleted-name" status="crashed" says="does not define `slot`"
def slot(blocks, i, block_size):
    return blocks[i // block_size] * block_size + i % block_size
del slot

# %% breaks="not-callable" status="crashed" says="not callable"
slot = 3

# %% breaks="wrong-arguments" status="crashed" says="takes 0 positional arguments"
def slot():
    return 1

# %% breaks="error-in-a-call" status="crashed" says="(line 2: return b[i])"
def slot(b, i, s):
    return b[i]

# %% breaks="loops-for-ever" status="timeout" says="not finished after 1.5 seconds"
while True:
    pass

# %% breaks="sleeps-in-a-call" status="timeout" says="not finished after 1.5 seconds"
import time
def slot(*a):
    time.sleep(99)

# %% breaks="catches-everything" status="timeout" says="not finished"
def slot(*a):
    while True:
        try:
            while True: pass
        except BaseException: pass

# %% breaks="eats-memory" status="crashed" says="MemoryError"
x = 'x' * (10 << 30)

# %% breaks="eats-memory-slowly" status="crashed" says="MemoryError"
x = []
while True:
    x.append('x' * 10_000_000)

# %% breaks="recursion" status="crashed" says="RecursionError"
def slot(*a):
    return slot(*a)

# %% breaks="segfault" status="died" says="SIGSEGV"
import numpy
numpy.lib.stride_tricks.as_strided(numpy.zeros(1), (1 << 40,), (8,))[1 << 35]

# %% breaks="aborts" status="died" says="process"
import os
os.abort()

# %% breaks="fork-bomb" status="crashed" says="PermissionError"
import os
while True:
    os.fork()

# %% breaks="thread-bomb" status="crashed timeout" says=""
import threading, time
while True:
    threading.Thread(target=time.sleep, args=(99,)).start()

# %% breaks="fills-the-disk" status="crashed" says="PermissionError"
open('/tmp/full', 'w').write('x' * 10**9)

# %% breaks="fills-shared-memory" status="crashed" says="Error"
from multiprocessing.shared_memory import SharedMemory
SharedMemory(create=True, size=1 << 30)

# %% breaks="endless-output" status="crashed" says="SystemExit"
import sys
for _ in range(200):
    print('x' * 1_000_000)
sys.exit()

# %% breaks="huge-result" status="crashed" says="too large"
def slot(*a):
    return 'x' * 50_000_000

# %% breaks="endless-generator" status="wrong" says="The slot is wrong."
def slot(*a):
    while True:
        yield 1

# %% breaks="nested-result" status="crashed wrong timeout" says=""
def slot(*a):
    x = []
    for _ in range(90000):
        x = [x]
    return x

# %% breaks="huge-number" status="crashed wrong died" says=""
def slot(*a):
    return 10 ** 6000

# %% breaks="lone-surrogate" status="wrong" says="The slot is wrong."
def slot(*a):
    return '\ud800'

# %% breaks="asks-the-user" status="crashed" says="EOFError"
input('?')

# %% breaks="debugger" status="crashed" says=""
breakpoint()

# %% breaks="error-without-text" status="crashed" says="raised E"
class E(Exception):
    def __str__(self): 1 / 0
raise E

# %% breaks="signal" status="died" says="SIGALRM"
import signal
signal.alarm(1)
while True: pass

# %% breaks="closes-the-socket" status="died" says="ended its own process"
import os
os.closerange(0, 99)
