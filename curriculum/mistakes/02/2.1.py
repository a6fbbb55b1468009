# %% wrong="logical-for-physical"
def slot(blocks, i, block_size):
    return (i // block_size) * block_size + i % block_size


# %% wrong="swapped"
def slot(blocks, i, block_size):
    return blocks[i % block_size] * block_size + i // block_size


# %% wrong="swapped"
def slot(blocks, i, block_size):
    offset, block = divmod(i, block_size)
    return blocks[block] * block_size + offset


# %% wrong="offset-lost"
def slot(blocks, i, block_size):
    return blocks[i // block_size] * block_size


# %% wrong="block-not-scaled"
def slot(blocks, i, block_size):
    return blocks[i // block_size] + i % block_size


# %% wrong="other-slot"
def slot(blocks, i, block_size):
    return blocks[i // block_size] * block_size + i % block_size + 1  # slots counted from 1


# %% wrong="crashed"
def slot(blocks, i, block_size):
    return blocks[i] * block_size


# %% wrong="unsolved"
def slot(blocks, i, block_size):
    raise NotImplementedError("exercise 2.1: write this")


# %% right="with divmod"
def slot(blocks, i, block_size):
    logical, offset = divmod(i, block_size)
    return blocks[logical] * block_size + offset


# %% right="all slots listed, with a helper"
def slots_of(block, block_size):
    return range(block * block_size, (block + 1) * block_size)


def slot(table, token, size):
    return [s for block in table for s in slots_of(block, size)][token]


# %% right="NumPy"
import numpy as np


def slot(blocks, i, block_size):
    every = np.asarray(blocks)[:, None] * block_size + np.arange(block_size)
    return every.reshape(-1)[i]


# %% wrong="changes-arguments"
def slot(blocks, i, block_size):
    while i >= block_size:
        blocks.pop(0)
        i -= block_size
    return float(blocks[0] * block_size + i)
