# %% wrong="one-way"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = -(-num_tokens // block_size) * block_size
    return slots * kv_bytes_per_token * 8 / (link_gbit * 1e9)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * num_parameters * num_tokens / (tflops * 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 1e9


# %% wrong="one-way"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = -(-num_tokens // block_size) * block_size
    return 2 * slots * kv_bytes_per_token * 8 / (link_gbit * 1e9)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * num_parameters * num_tokens / (tflops * 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 1e9


# %% wrong="bits"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = -(-num_tokens // block_size) * block_size
    return 2 * slots * kv_bytes_per_token / (link_gbit * 1e9)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * num_parameters * num_tokens / (tflops * 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 1e9


# %% wrong="bits"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = -(-num_tokens // block_size) * block_size
    return 2 * slots * kv_bytes_per_token / 8 / (link_gbit * 1e9)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * num_parameters * num_tokens / (tflops * 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 1e9


# %% wrong="bits"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = -(-num_tokens // block_size) * block_size
    return 2 * slots * kv_bytes_per_token * 8 / (link_gbit * 1e9)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * num_parameters * num_tokens / (tflops * 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token / recompute_seconds(1, num_parameters, tflops) / 1e9


# %% wrong="part-of-a-block"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = num_tokens
    return 2 * slots * kv_bytes_per_token * 8 / (link_gbit * 1e9)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * num_parameters * num_tokens / (tflops * 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 1e9


# %% wrong="part-of-a-block"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = num_tokens // block_size * block_size
    return 2 * slots * kv_bytes_per_token * 8 / (link_gbit * 1e9)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * num_parameters * num_tokens / (tflops * 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 1e9


# %% wrong="binary-giga"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = -(-num_tokens // block_size) * block_size
    return 2 * slots * kv_bytes_per_token * 8 / (link_gbit * 2**30)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * num_parameters * num_tokens / (tflops * 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 1e9


# %% wrong="binary-giga"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = -(-num_tokens // block_size) * block_size
    return 2 * slots * kv_bytes_per_token * 8 / (link_gbit * 1e9)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * num_parameters * num_tokens / (tflops * 2**40)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 1e9


# %% wrong="one-operation"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = -(-num_tokens // block_size) * block_size
    return 2 * slots * kv_bytes_per_token * 8 / (link_gbit * 1e9)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return num_parameters * num_tokens / (tflops * 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 1e9


# %% wrong="other-cost"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = -(-num_tokens // block_size) * block_size
    return 2 * slots * kv_bytes_per_token * 8 / (link_gbit)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * num_parameters * num_tokens / (tflops * 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 1e9


# %% wrong="other-cost"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = -(-num_tokens // block_size) * block_size
    return 2 * slots * kv_bytes_per_token * 8 / (link_gbit * 1e9)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * num_parameters * num_tokens / (tflops * 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token * 8 * recompute_seconds(1, num_parameters, tflops)


# %% wrong="crashed"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = -(-num_tokens // block_size) * block_size
    return 2 * slots * kv_bytes_per_token * 8 / (link_gbit * 1e9)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * num_parameters * num_tokens / (tflops // 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 1e9


# %% right="whole numbers and fractions"
import math
from fractions import Fraction

GIGA, TERA, BITS = 10**9, 10**12, 8


def _bits(num_tokens, block_size, kv_bytes_per_token):
    return math.ceil(Fraction(num_tokens, block_size)) * block_size * kv_bytes_per_token * BITS


def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    one_way = _bits(num_tokens, block_size, kv_bytes_per_token) / (link_gbit * GIGA)
    return one_way + one_way


def recompute_seconds(num_tokens, num_parameters, tflops):
    return num_tokens * 2 * num_parameters / tflops / TERA


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    # 2 · 8 · kv / (link · 1e9) = 2 · parameters / (tflops · 1e12)
    return BITS * kv_bytes_per_token * tflops * (TERA // GIGA) / num_parameters


# %% right="NumPy numbers, keyword arguments, one in terms of the other"
import numpy as np


def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    blocks = np.ceil(num_tokens / block_size)
    bytes_per_second = np.float64(link_gbit) * 1e9 / 8
    return np.sum([blocks * block_size * kv_bytes_per_token / bytes_per_second] * 2)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return np.float64(2) * num_parameters * num_tokens / (tflops * 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    at_one = swap_seconds(num_tokens=16, block_size=16, kv_bytes_per_token=kv_bytes_per_token, link_gbit=1)
    return at_one / recompute_seconds(16, num_parameters, tflops)


# %% wrong="extra-block"
def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    slots = (num_tokens // block_size + 1) * block_size
    return 2 * slots * kv_bytes_per_token * 8 / (link_gbit * 1e9)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * num_parameters * num_tokens / (tflops * 1e12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 1e9


# %% right="exact fractions"
from fractions import Fraction


def swap_seconds(num_tokens, block_size, kv_bytes_per_token, link_gbit):
    blocks = -(-num_tokens // block_size)
    return 2 * blocks * block_size * kv_bytes_per_token * 8 / (Fraction(link_gbit) * 10**9)


def recompute_seconds(num_tokens, num_parameters, tflops):
    return 2 * Fraction(num_parameters) * num_tokens / (Fraction(tflops) * 10**12)


def break_even_gbit(kv_bytes_per_token, num_parameters, tflops):
    return 2 * kv_bytes_per_token * 8 / recompute_seconds(1, num_parameters, tflops) / 10**9
