# %% [markdown]
# Ways to read the solution from the disk. PATH becomes the path of a file in which it stands; `learn` looks for the
# solution in a text and defines `slot` from it.

# %% way="open"
learn(open(PATH).read())

# %% way="os-open"
import os
learn(os.read(os.open(PATH, os.O_RDONLY), 100000).decode())

# %% way="pathlib"
from pathlib import Path
learn(Path(PATH).read_text())

# %% way="loader"
from importlib.machinery import SourceFileLoader as L
learn(L('x', PATH).get_data(PATH).decode())

# %% way="numpy"
import numpy
learn(bytes(numpy.fromfile(PATH, dtype='u1')).decode())

# %% way="linecache"
import linecache
learn(''.join(linecache.getlines(PATH)))

# %% way="through-proc"
learn(open('/proc/self/root' + PATH).read())

# %% way="chdir"
import os
os.chdir(os.path.dirname(PATH))
learn(open(os.path.basename(PATH)).read())

# %% way="subprocess"
import subprocess
learn(subprocess.run(['cat', PATH], capture_output=True, text=True).stdout)

# %% way="fork-exec"
import os
r, w = os.pipe()
if os.fork() == 0:
    os.dup2(w, 1)
    os.execv('/bin/cat', ['cat', PATH])
os.close(w)
learn(os.fdopen(r).read())

# %% way="hook-blinded"
import gc
for f in gc.get_objects():
    if getattr(f, '__qualname__', '') == '_audit_hook.<locals>.hook':
        for c in f.__closure__:
            c.cell_contents = '/nowhere' if isinstance(c.cell_contents, str) else c.cell_contents
learn(open(PATH).read())
