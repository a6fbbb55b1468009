# %% wrong="logical-for-physical"
@triton.jit
def load_block(
    out_ptr,
    cache_ptr,
    table_ptr,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    logical = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)[:, None]
    d = tl.arange(0, HEAD_DIM)[None, :]
    keys = tl.load(cache_ptr + ((logical * BLOCK_SIZE + slot) * KV_HEADS + kv_head) * HEAD_DIM + d)
    tl.store(out_ptr + (logical * BLOCK_SIZE + slot) * HEAD_DIM + d, keys)


# %% wrong="block-as-token"
@triton.jit
def load_block(
    out_ptr,
    cache_ptr,
    table_ptr,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    logical = tl.program_id(0)
    block = tl.load(table_ptr + logical)
    slot = tl.arange(0, BLOCK_SIZE)[:, None]
    d = tl.arange(0, HEAD_DIM)[None, :]
    keys = tl.load(cache_ptr + ((block + slot) * KV_HEADS + kv_head) * HEAD_DIM + d)
    tl.store(out_ptr + (logical * BLOCK_SIZE + slot) * HEAD_DIM + d, keys)


# %% wrong="wrong-stride"
@triton.jit
def load_block(
    out_ptr,
    cache_ptr,
    table_ptr,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    logical = tl.program_id(0)
    block = tl.load(table_ptr + logical)
    slot = tl.arange(0, BLOCK_SIZE)[:, None]
    d = tl.arange(0, HEAD_DIM)[None, :]
    keys = tl.load(cache_ptr + block * BLOCK_SIZE * KV_HEADS * HEAD_DIM + (slot + kv_head) * HEAD_DIM + d)
    tl.store(out_ptr + (logical * BLOCK_SIZE + slot) * HEAD_DIM + d, keys)


# %% wrong="wrong-stride"
@triton.jit
def load_block(
    out_ptr,
    cache_ptr,
    table_ptr,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    logical = tl.program_id(0)
    block = tl.load(table_ptr + logical)
    slot = tl.arange(0, BLOCK_SIZE)[:, None]
    d = tl.arange(0, HEAD_DIM)[None, :]
    keys = tl.load(
        cache_ptr + ((block * KV_HEADS + kv_head) * BLOCK_SIZE + slot) * HEAD_DIM + d
    )  # as if heads came before slots
    tl.store(out_ptr + (logical * BLOCK_SIZE + slot) * HEAD_DIM + d, keys)


# %% wrong="wrong-stride"
@triton.jit
def load_block(
    out_ptr,
    cache_ptr,
    table_ptr,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    logical = tl.program_id(0)
    block = tl.load(table_ptr + logical)
    slot = tl.arange(0, BLOCK_SIZE)[:, None]
    d = tl.arange(0, HEAD_DIM)[None, :]
    keys = tl.load(
        cache_ptr + (block * BLOCK_SIZE + slot + kv_head) * HEAD_DIM + d
    )  # the other heads are not stepped over
    tl.store(out_ptr + (logical * BLOCK_SIZE + slot) * HEAD_DIM + d, keys)


# %% wrong="kv-head-lost"
@triton.jit
def load_block(
    out_ptr,
    cache_ptr,
    table_ptr,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    logical = tl.program_id(0)
    block = tl.load(table_ptr + logical)
    slot = tl.arange(0, BLOCK_SIZE)[:, None]
    d = tl.arange(0, HEAD_DIM)[None, :]
    keys = tl.load(cache_ptr + (block * BLOCK_SIZE + slot) * KV_HEADS * HEAD_DIM + d)
    tl.store(out_ptr + (logical * BLOCK_SIZE + slot) * HEAD_DIM + d, keys)


# %% wrong="out-of-bounds"
@triton.jit
def load_block(
    out_ptr,
    cache_ptr,
    table_ptr,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    logical = tl.program_id(0)
    block = tl.load(table_ptr + logical)
    slot = tl.arange(0, BLOCK_SIZE)[:, None]
    d = tl.arange(0, HEAD_DIM)[None, :]
    keys = tl.load(
        cache_ptr + block * BLOCK_SIZE * KV_HEADS * HEAD_DIM * BLOCK_SIZE + slot * KV_HEADS * HEAD_DIM + d
    )
    tl.store(out_ptr + (logical * BLOCK_SIZE + slot) * HEAD_DIM + d, keys)


# %% wrong="other-numbers"
@triton.jit
def load_block(
    out_ptr,
    cache_ptr,
    table_ptr,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    logical = tl.program_id(0)
    block = tl.load(table_ptr + logical)
    slot = tl.arange(0, BLOCK_SIZE)[:, None]
    d = tl.arange(0, HEAD_DIM)[None, :]
    keys = tl.load(cache_ptr + ((block * BLOCK_SIZE + slot) * KV_HEADS + kv_head) * HEAD_DIM + d)
    tl.store(out_ptr + slot * HEAD_DIM + d, keys)  # every program writes to the same place


# %% wrong="other-numbers"
@triton.jit
def load_block(
    out_ptr,
    cache_ptr,
    table_ptr,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    logical = tl.program_id(0)
    block = tl.load(table_ptr + logical)
    d = tl.arange(0, HEAD_DIM)
    keys = tl.load(
        cache_ptr + (block * BLOCK_SIZE * KV_HEADS + kv_head) * HEAD_DIM + d
    )  # the first slot only
    tl.store(out_ptr + logical * BLOCK_SIZE * HEAD_DIM + d, keys)


# %% wrong="crashed"
def load_block(out_ptr, cache_ptr, table_ptr, kv_head, KV_HEADS, HEAD_DIM, BLOCK_SIZE):
    out_ptr[:] = cache_ptr[table_ptr][:, :, kv_head]  # NumPy, and no kernel


# %% right="slot by slot"
@triton.jit
def load_block(
    out_ptr,
    cache_ptr,
    table_ptr,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    logical = tl.program_id(0)
    block = tl.load(table_ptr + logical)
    d = tl.arange(0, HEAD_DIM)
    for slot in range(BLOCK_SIZE):
        row = (block * BLOCK_SIZE + slot) * KV_HEADS + kv_head
        keys = tl.load(cache_ptr + row * HEAD_DIM + d)
        tl.store(out_ptr + (logical * BLOCK_SIZE + slot) * HEAD_DIM + d, keys)


# %% right="with strides, in 64 bits, and other names"
@triton.jit
def load_block(
    result, keys, blocks, head, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr
):
    i = tl.program_id(axis=0)
    token_stride = KV_HEADS * HEAD_DIM
    block_stride = BLOCK_SIZE * token_stride
    start = keys + tl.load(blocks + i).to(tl.int64) * block_stride + head * HEAD_DIM
    rows = tl.arange(0, BLOCK_SIZE)
    columns = tl.arange(0, HEAD_DIM)
    tile = tl.load(start + (rows[:, None] * token_stride + columns[None, :]))
    tl.store(result + i * BLOCK_SIZE * HEAD_DIM + rows[:, None] * HEAD_DIM + columns[None, :], tile)


# %% right="one flat tile, divided into slots and numbers"
@triton.jit
def load_block(
    out_ptr,
    cache_ptr,
    table_ptr,
    kv_head,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    logical = tl.program_id(0)
    block = tl.load(table_ptr + logical)
    i = tl.arange(0, BLOCK_SIZE * HEAD_DIM)
    slot = i // HEAD_DIM
    keys = tl.load(cache_ptr + ((block * BLOCK_SIZE + slot) * KV_HEADS + kv_head) * HEAD_DIM + i % HEAD_DIM)
    tl.store(out_ptr + logical * BLOCK_SIZE * HEAD_DIM + i, keys)
