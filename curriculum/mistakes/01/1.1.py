# %% wrong="query-heads"
def kv_bytes_per_token(config):
    return 2 * config["num_layers"] * config["num_heads"] * config["head_dim"] * config["bits"] // 8


# %% wrong="keys-only"
def kv_bytes_per_token(config):
    return config["num_layers"] * config["num_kv_heads"] * config["head_dim"] * config["bits"] // 8


# %% wrong="one-layer"
def kv_bytes_per_token(config):
    return 2 * config["num_kv_heads"] * config["head_dim"] * config["bits"] // 8


# %% wrong="bits"
def kv_bytes_per_token(config):
    return 2 * config["num_layers"] * config["num_kv_heads"] * config["head_dim"] * config["bits"]


# %% wrong="rounded-number"
def kv_bytes_per_token(config):
    bytes_per_number = config["bits"] // 8
    return 2 * config["num_layers"] * config["num_kv_heads"] * config["head_dim"] * bytes_per_number


# %% wrong="rounded-number"
import math


def kv_bytes_per_token(config):
    bytes_per_number = math.ceil(config["bits"] / 8)
    return 2 * config["num_layers"] * config["num_kv_heads"] * config["head_dim"] * bytes_per_number


# %% wrong="other-bytes"
def kv_bytes_per_token(config):
    return 327680


# %% wrong="other-bytes"
def kv_bytes_per_token(config):
    return None


# %% wrong="crashed"
def kv_bytes_per_token(config):
    return config.num_layers


# %% wrong="unsolved"
def kv_bytes_per_token(config):
    raise NotImplementedError("exercise 1.1: write this")


# %% right="floats"
def kv_bytes_per_token(config):
    return 2 * config["num_layers"] * config["num_kv_heads"] * config["head_dim"] * (config["bits"] / 8)


# %% right="sum over layers, with helpers"
def numbers_per_layer(heads, size):
    keys = heads * size
    values = heads * size
    return keys + values


def kv_bytes_per_token(c):
    total_bits = sum(
        numbers_per_layer(c["num_kv_heads"], c["head_dim"]) * c["bits"] for _ in range(c["num_layers"])
    )
    return total_bits // 8


# %% right="NumPy"
import numpy as np


def kv_bytes_per_token(config):
    factors = np.array([config["num_layers"], config["num_kv_heads"], config["head_dim"], 2, config["bits"]])
    return factors.prod() // 8


# %% right="destroys its argument"
def kv_bytes_per_token(config):
    config.pop("num_heads")
    product = 2
    while config:
        product *= config.popitem()[1]
    return product >> 3
