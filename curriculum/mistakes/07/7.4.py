# %% wrong="nothing-shared"
def blocks_held(prompt, new, n, block_size):
    stored = prompt + new - 1
    return n * -(-stored // block_size)


def seconds(prompt, new, n, per_pass, per_token):
    prefill = per_pass + per_token * prompt
    return prefill + (new - 1) * (per_pass + per_token * n)


# %% wrong="partial-shared"
def blocks_held(prompt, new, n, block_size):
    stored = prompt + new - 1
    if new == 1:
        return -(-stored // block_size)
    shared = -(-prompt // block_size)
    return shared + n * (-(-stored // block_size) - shared)


def seconds(prompt, new, n, per_pass, per_token):
    prefill = per_pass + per_token * prompt
    return prefill + (new - 1) * (per_pass + per_token * n)


# %% wrong="last-stored"
def blocks_held(prompt, new, n, block_size):
    stored = prompt + new
    if new == 1:
        return -(-stored // block_size)
    shared = prompt // block_size
    return shared + n * (-(-stored // block_size) - shared)


def seconds(prompt, new, n, per_pass, per_token):
    prefill = per_pass + per_token * prompt
    return prefill + (new - 1) * (per_pass + per_token * n)


# %% wrong="prompt-copied"
def blocks_held(prompt, new, n, block_size):
    stored = prompt + new - 1
    shared = prompt // block_size
    return shared + n * (-(-stored // block_size) - shared)


def seconds(prompt, new, n, per_pass, per_token):
    prefill = per_pass + per_token * prompt
    return prefill + (new - 1) * (per_pass + per_token * n)


# %% wrong="prefill-each"
def blocks_held(prompt, new, n, block_size):
    stored = prompt + new - 1
    if new == 1:
        return -(-stored // block_size)
    shared = prompt // block_size
    return shared + n * (-(-stored // block_size) - shared)


def seconds(prompt, new, n, per_pass, per_token):
    prefill = n * (per_pass + per_token * prompt)
    return prefill + (new - 1) * (per_pass + per_token * n)


# %% wrong="prefill-each"
def blocks_held(prompt, new, n, block_size):
    stored = prompt + new - 1
    if new == 1:
        return -(-stored // block_size)
    shared = prompt // block_size
    return shared + n * (-(-stored // block_size) - shared)


def seconds(prompt, new, n, per_pass, per_token):
    prefill = per_pass + per_token * prompt * n
    return prefill + (new - 1) * (per_pass + per_token * n)


# %% wrong="one-pass-more"
def blocks_held(prompt, new, n, block_size):
    stored = prompt + new - 1
    if new == 1:
        return -(-stored // block_size)
    shared = prompt // block_size
    return shared + n * (-(-stored // block_size) - shared)


def seconds(prompt, new, n, per_pass, per_token):
    prefill = per_pass + per_token * prompt
    return prefill + new * (per_pass + per_token * n)


# %% wrong="in-turn"
def blocks_held(prompt, new, n, block_size):
    stored = prompt + new - 1
    if new == 1:
        return -(-stored // block_size)
    shared = prompt // block_size
    return shared + n * (-(-stored // block_size) - shared)


def seconds(prompt, new, n, per_pass, per_token):
    prefill = per_pass + per_token * prompt
    return prefill + n * (new - 1) * (per_pass + per_token)


# %% wrong="per-token-forgotten"
def blocks_held(prompt, new, n, block_size):
    stored = prompt + new - 1
    if new == 1:
        return -(-stored // block_size)
    shared = prompt // block_size
    return shared + n * (-(-stored // block_size) - shared)


def seconds(prompt, new, n, per_pass, per_token):
    prefill = per_pass + per_token * prompt
    return prefill + (new - 1) * (per_pass + per_token)


# %% wrong="other-cost"
def blocks_held(prompt, new, n, block_size):
    stored = prompt + new - 1
    if new == 1:
        return -(-stored // block_size)
    shared = prompt // block_size
    return n * (-(-stored // block_size) - shared)


def seconds(prompt, new, n, per_pass, per_token):
    prefill = per_pass + per_token * prompt
    return prefill + (new - 1) * (per_pass + per_token * n)


# %% right="counted pass by pass"
def blocks_held(prompt, new, n, block_size):
    held = set()
    for sample in range(n):
        for p in range(prompt + new - 1):
            block = p // block_size
            own = new > 1 and (block + 1) * block_size > prompt
            held.add((block, sample if own else "shared"))
    return len(held)


def seconds(prompt, new, n, per_pass, per_token):
    passes = [prompt] + [n] * (new - 1)
    return sum(per_pass + per_token * tokens for tokens in passes)


# %% right="with divmod"
from math import ceil


def blocks_held(prompt, new, n, block_size):
    full, rest = divmod(prompt, block_size)
    if new == 1:
        return full + (rest > 0)
    return full + n * ceil((rest + new - 1) / block_size)


def seconds(prompt, new, n, per_pass, per_token):
    return new * per_pass + per_token * (prompt + n * (new - 1))
