# %% wrong="head-modulo"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head % KV_HEADS
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="head-modulo"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // KV_HEADS
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="no-scale"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1)
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="no-mask"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = slot < BLOCK_SIZE
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="no-mask"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="last-block"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(seq_len // BLOCK_SIZE):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="no-rescale"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="no-rescale"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        weights = tl.exp(scores - new_top)
        total = total + tl.sum(weights, axis=0)
        acc = acc + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="divides-early"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = (acc * rescale + tl.sum(weights[:, None] * v, axis=0)) / total
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc, mask=d < HEAD_DIM)


# %% wrong="nan-leaks"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=(slot < BLOCK_SIZE)[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="overflow"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        weights = tl.exp(scores)
        total = total + tl.sum(weights, axis=0)
        acc = acc + tl.sum(weights[:, None] * v, axis=0)
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="32-bit-offset"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="32-bit-offset"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = ((token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]).to(tl.int64)  # too late
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="out-of-bounds"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=exists[:, None], other=0.0)
        v = tl.load(v_ptr + offsets, mask=exists[:, None], other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total)


# %% wrong="out-of-bounds"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * 64 * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="out-of-bounds"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(seq_len // BLOCK_SIZE + 1):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="other-attention"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="other-attention"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * k, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% right="token by token, without tiles of slots"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    d = tl.arange(0, D)
    here = d < HEAD_DIM
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=here, other=0.0) * scale
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for t in range(tl.load(lens_ptr + seq)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + t // BLOCK_SIZE).to(tl.int64)
        row = (block * BLOCK_SIZE + t % BLOCK_SIZE) * KV_HEADS + head * KV_HEADS // HEADS
        score = tl.sum(q * tl.load(k_ptr + row * HEAD_DIM + d, mask=here, other=0.0), axis=0)
        new_top = tl.maximum(top, score)
        rescale = tl.exp(top - new_top)
        weight = tl.exp(score - new_top)
        total = total * rescale + weight
        acc = acc * rescale + weight * tl.load(v_ptr + row * HEAD_DIM + d, mask=here, other=0.0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=here)


# %% right="two passes: first the maximum, then the sums; strides in 64 bits"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    start = (head // (HEADS // KV_HEADS)) * HEAD_DIM
    num_blocks = (seq_len + BLOCK_SIZE - 1) // BLOCK_SIZE
    top = -float("inf")
    for i in range(num_blocks):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + i).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (i * BLOCK_SIZE + slot < seq_len)
        at = (
            block * (BLOCK_SIZE * KV_HEADS * HEAD_DIM)
            + start
            + slot[:, None] * (KV_HEADS * HEAD_DIM)
            + d[None, :]
        )
        k = tl.load(k_ptr + at, mask=exists[:, None] & (d < HEAD_DIM)[None, :], other=0.0)
        scores = tl.where(exists, tl.sum(k * q[None, :], axis=1) * scale, -float("inf"))
        top = tl.maximum(top, tl.max(scores, axis=0))
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for i in range(num_blocks):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + i).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (i * BLOCK_SIZE + slot < seq_len)
        at = (
            block * (BLOCK_SIZE * KV_HEADS * HEAD_DIM)
            + start
            + slot[:, None] * (KV_HEADS * HEAD_DIM)
            + d[None, :]
        )
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        k = tl.load(k_ptr + at, mask=mask, other=0.0)
        v = tl.load(v_ptr + at, mask=mask, other=0.0)
        scores = tl.where(exists, tl.sum(k * q[None, :], axis=1) * scale, -float("inf"))
        weights = tl.exp(scores - top)
        total += tl.sum(weights, axis=0)
        acc += tl.sum(weights[:, None] * v, axis=0)
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% right="a helper kernel, and a loop over the whole table"
@triton.jit
def rows_of(
    base_ptr,
    block,
    slot,
    kv_head,
    mask,
    d,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SIZE: tl.constexpr,
):
    row = (block * SIZE + slot) * KV_HEADS + kv_head
    return tl.load(base_ptr + row[:, None] * HEAD_DIM + d[None, :], mask=mask, other=0.0)


@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(MAX_BLOCKS):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        k = rows_of(k_ptr, block, slot, kv_head, mask, d, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        v = rows_of(v_ptr, block, slot, kv_head, mask, d, KV_HEADS, HEAD_DIM, BLOCK_SIZE)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="own-scale"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) / HEAD_DIM**0.5
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="overflow"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = 0.0
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)


# %% wrong="program-ids"
@triton.jit
def decode(
    out_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    MAX_BLOCKS: tl.constexpr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    seq = tl.program_id(1)
    head = tl.program_id(0)
    kv_head = head // (HEADS // KV_HEADS)
    d = tl.arange(0, D)
    slot = tl.arange(0, B)
    seq_len = tl.load(lens_ptr + seq)
    q = tl.load(q_ptr + (seq * HEADS + head) * HEAD_DIM + d, mask=d < HEAD_DIM, other=0.0)
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([D], tl.float32)
    for logical in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block = tl.load(tables_ptr + seq * MAX_BLOCKS + logical).to(tl.int64)
        exists = (slot < BLOCK_SIZE) & (logical * BLOCK_SIZE + slot < seq_len)
        mask = exists[:, None] & (d < HEAD_DIM)[None, :]
        token = block * BLOCK_SIZE + slot
        offsets = (token * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + offsets, mask=mask, other=0.0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0.0)
        scores = tl.sum(q[None, :] * k, axis=1) * scale
        scores = tl.where(exists, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=0))
        rescale = tl.exp(top - new_top)
        weights = tl.exp(scores - new_top)
        total = total * rescale + tl.sum(weights, axis=0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, axis=0)
        top = new_top
    tl.store(out_ptr + (seq * HEADS + head) * HEAD_DIM + d, acc / total, mask=d < HEAD_DIM)
