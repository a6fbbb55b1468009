# %% wrong="floor-blocks"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    budget = (fraction * memory_gb - weights_gb) * 1e9
    blocks = num_tokens // block_size
    return (
        int(budget // (max_tokens * bytes_per_token)),
        int(budget // (blocks * block_size * bytes_per_token)),
    )


# %% wrong="no-blocks"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    budget = (fraction * memory_gb - weights_gb) * 1e9
    return int(budget // (max_tokens * bytes_per_token)), int(budget // (num_tokens * bytes_per_token))


# %% wrong="gib"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    budget = (fraction * memory_gb - weights_gb) * 2**30
    slots = -(-num_tokens // block_size) * block_size
    return int(budget // (max_tokens * bytes_per_token)), int(budget // (slots * bytes_per_token))


# %% wrong="weights-forgotten"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    budget = fraction * memory_gb * 1e9
    slots = -(-num_tokens // block_size) * block_size
    return int(budget // (max_tokens * bytes_per_token)), int(budget // (slots * bytes_per_token))


# %% wrong="fraction-of-rest"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    budget = fraction * (memory_gb - weights_gb) * 1e9
    slots = -(-num_tokens // block_size) * block_size
    return int(budget // (max_tokens * bytes_per_token)), int(budget // (slots * bytes_per_token))


# %% wrong="reserves-tokens"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    budget = (fraction * memory_gb - weights_gb) * 1e9
    slots = -(-num_tokens // block_size) * block_size
    return int(budget // (num_tokens * bytes_per_token)), int(budget // (slots * bytes_per_token))


# %% wrong="one-too-many"
import math


def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    budget = (fraction * memory_gb - weights_gb) * 1e9
    slots = math.ceil(num_tokens / block_size) * block_size
    return math.ceil(budget / (max_tokens * bytes_per_token)), math.ceil(budget / (slots * bytes_per_token))


# %% wrong="one-too-many"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    budget = (fraction * memory_gb - weights_gb) * 1e9
    slots = -(-num_tokens // block_size) * block_size
    return budget / (max_tokens * bytes_per_token), budget / (slots * bytes_per_token)  # parts of a request


# %% wrong="swapped"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    budget = (fraction * memory_gb - weights_gb) * 1e9
    slots = -(-num_tokens // block_size) * block_size
    return int(budget // (slots * bytes_per_token)), int(budget // (max_tokens * bytes_per_token))


# %% wrong="other-fit"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    return 7, 11


# %% wrong="crashed"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    return memory_gb // 0, 1


# %% wrong="unsolved"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    raise NotImplementedError("exercise 1.4: write this")


# %% right="counts blocks"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    left = int(memory_gb * fraction * 1e9) - int(weights_gb * 1e9)
    num_blocks = left // (block_size * bytes_per_token)
    per_request = (num_tokens + block_size - 1) // block_size
    return left // (max_tokens * bytes_per_token), num_blocks // per_request


# %% right="fractions, with a helper"
from fractions import Fraction


def how_many(budget, size):
    return int(budget / size)


def requests_that_fit(gb, share, weights, per_token, longest, tokens, block):
    budget = Fraction(gb) * Fraction(str(share)) * 10**9 - weights * 10**9
    held = next(n for n in range(tokens, tokens + block) if n % block == 0)
    return [how_many(budget, longest * per_token), how_many(budget, held * per_token)]


# %% right="floats and NumPy"
import numpy as np


def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    slots = np.array([max_tokens, np.ceil(num_tokens / block_size) * block_size])
    return np.floor((memory_gb * fraction - weights_gb) / (slots * bytes_per_token / 1e9))


# %% wrong="extra-block"
def requests_that_fit(memory_gb, fraction, weights_gb, bytes_per_token, max_tokens, num_tokens, block_size):
    budget = (fraction * memory_gb - weights_gb) * 1e9
    slots = (num_tokens // block_size + 1) * block_size  # one block too many for a multiple
    return int(budget // (max_tokens * bytes_per_token)), int(budget // (slots * bytes_per_token))
