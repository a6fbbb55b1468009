# %% wrong="query-heads"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    return 2 * sum(lengths) * num_heads * head_dim * number_bytes


def roofline(flops, num_bytes, peak, bandwidth):
    return min(peak, bandwidth * flops / num_bytes)


# %% wrong="one-of-two"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    return sum(lengths) * num_kv_heads * head_dim * number_bytes


def roofline(flops, num_bytes, peak, bandwidth):
    return min(peak, bandwidth * flops / num_bytes)


# %% wrong="bits"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    return 2 * sum(lengths) * num_kv_heads * head_dim * number_bytes * 8


def roofline(flops, num_bytes, peak, bandwidth):
    return min(peak, bandwidth * flops / num_bytes)


# %% wrong="bits"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    return 2 * sum(lengths) * num_kv_heads * head_dim


def roofline(flops, num_bytes, peak, bandwidth):
    return min(peak, bandwidth * flops / num_bytes)


# %% wrong="one-sequence"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    return 2 * max(lengths) * num_kv_heads * head_dim * number_bytes


def roofline(flops, num_bytes, peak, bandwidth):
    return min(peak, bandwidth * flops / num_bytes)


# %% wrong="other-bytes"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    return 2 * sum(n * n for n in lengths) * num_kv_heads * head_dim * number_bytes


def roofline(flops, num_bytes, peak, bandwidth):
    return min(peak, bandwidth * flops / num_bytes)


# %% wrong="higher-roof"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    return 2 * sum(lengths) * num_kv_heads * head_dim * number_bytes


def roofline(flops, num_bytes, peak, bandwidth):
    return max(peak, bandwidth * flops / num_bytes)


# %% wrong="peak-only"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    return 2 * sum(lengths) * num_kv_heads * head_dim * number_bytes


def roofline(flops, num_bytes, peak, bandwidth):
    return peak


# %% wrong="memory-only"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    return 2 * sum(lengths) * num_kv_heads * head_dim * number_bytes


def roofline(flops, num_bytes, peak, bandwidth):
    return bandwidth * flops / num_bytes


# %% wrong="inverted"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    return 2 * sum(lengths) * num_kv_heads * head_dim * number_bytes


def roofline(flops, num_bytes, peak, bandwidth):
    return min(peak, bandwidth * num_bytes / flops)


# %% wrong="other-roof"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    return 2 * sum(lengths) * num_kv_heads * head_dim * number_bytes


def roofline(flops, num_bytes, peak, bandwidth):
    return 1 / (flops / peak + num_bytes / bandwidth)


# %% right="from the time"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    total = 0
    for length in lengths:
        keys = length * num_kv_heads * head_dim * number_bytes
        values = keys
        total += keys + values
    return total


def roofline(flops, num_bytes, peak, bandwidth):
    seconds = max(flops / peak, num_bytes / bandwidth)
    return flops / seconds


# %% right="NumPy, and the ridge"
import numpy as np


def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    return np.sum(lengths) * (2 * num_kv_heads * head_dim * number_bytes)


def roofline(flops, num_bytes, peak, bandwidth):
    intensity, ridge = flops / num_bytes, peak / bandwidth
    return peak if intensity >= ridge else bandwidth * intensity


# %% wrong="changes-arguments"
def decode_bytes(lengths, num_heads, num_kv_heads, head_dim, number_bytes):
    """Bytes of keys and values that must be read."""
    total = 0
    while lengths:
        total += lengths.pop()
    return 2 * total * num_kv_heads * head_dim * number_bytes


def roofline(flops, num_bytes, peak, bandwidth):
    """Operations a second that can be reached."""
    return min(peak, bandwidth * flops / num_bytes)
