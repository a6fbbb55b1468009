# %% wrong="floor"
def admit(prompt_tokens, num_free, num_blocks, block_size, watermark=0):
    needed = prompt_tokens // block_size + 1 + watermark
    if needed > num_blocks:
        return "NEVER"
    return "OK" if needed <= num_free else "LATER"


# %% wrong="no-growth"
import math


def admit(prompt_tokens, num_free, num_blocks, block_size, watermark=0):
    needed = math.ceil(prompt_tokens / block_size) + watermark
    if needed > num_blocks:
        return "NEVER"
    return "OK" if needed <= num_free else "LATER"


# %% wrong="never-is-later"
def admit(prompt_tokens, num_free, num_blocks, block_size, watermark=0):
    needed = -(-prompt_tokens // block_size) + 1 + watermark
    return "OK" if needed <= num_free else "LATER"


# %% wrong="later-is-never"
def admit(prompt_tokens, num_free, num_blocks, block_size, watermark=0):
    needed = -(-prompt_tokens // block_size) + 1 + watermark
    return "OK" if needed <= num_free else "NEVER"


# %% wrong="watermark-ignored"
def admit(prompt_tokens, num_free, num_blocks, block_size, watermark=0):
    needed = -(-prompt_tokens // block_size) + 1
    if needed > num_blocks:
        return "NEVER"
    return "OK" if needed <= num_free else "LATER"


# %% wrong="too-strict"
def admit(prompt_tokens, num_free, num_blocks, block_size, watermark=0):
    needed = -(-prompt_tokens // block_size) + 1
    if needed >= num_blocks - watermark:
        return "NEVER"
    return "OK" if needed < num_free - watermark else "LATER"


# %% wrong="other-decision"
def admit(prompt_tokens, num_free, num_blocks, block_size, watermark=0):
    needed = prompt_tokens + 1 + watermark  # tokens compared with blocks
    if needed > num_blocks:
        return "NEVER"
    return "OK" if needed <= num_free else "LATER"


# %% wrong="other-decision"
def admit(prompt_tokens, num_free, num_blocks, block_size, watermark=0):
    return num_free > prompt_tokens // block_size + watermark  # a truth value is no decision


# %% right="slots instead of blocks"
def admit(prompt_tokens, num_free, num_blocks, block_size, watermark=0):
    def fits(blocks):
        return prompt_tokens <= (blocks - watermark - 1) * block_size

    return "OK" if fits(num_free) else "LATER" if fits(num_blocks) else "NEVER"


# %% right="other names, lower case"
import numpy as np


def admit(length, available, total, size, watermark=0):
    want = int(np.ceil(length / size)) + 1
    for answer, blocks in (("ok", available), ("later", total)):
        if want + watermark <= blocks:
            return answer
    return "never"


# %% wrong="never-too-late"
def admit(prompt_tokens, num_free, num_blocks, block_size, watermark=0):
    needed = -(-prompt_tokens // block_size) + 1
    if needed > num_blocks:  # the watermark is not kept back here
        return "NEVER"
    return "OK" if needed + watermark <= num_free else "LATER"


# %% wrong="never-too-late"
def admit(prompt_tokens, num_free, num_blocks, block_size, watermark=0):
    blocks = -(-prompt_tokens // block_size)
    if blocks > num_blocks - watermark:  # no block to grow into
        return "NEVER"
    return "OK" if blocks + 1 <= num_free - watermark else "LATER"
