# %% wrong="scored-0"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets, mask=exists[:, None], other=0.0)
    v = tl.load(v_ptr + offsets, mask=exists[:, None], other=0.0)
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    scores = tl.where(exists, scores, 0.0)
    weights = tl.exp(scores - tl.max(scores, axis=0))
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% wrong="scored-0"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets, mask=exists[:, None], other=0.0)
    v = tl.load(v_ptr + offsets, mask=exists[:, None], other=0.0)
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    weights = tl.exp(scores - tl.max(scores, axis=0))
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% wrong="no-mask"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    seq_len = tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets)
    v = tl.load(v_ptr + offsets)
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    weights = tl.exp(scores - tl.max(scores, axis=0))
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% wrong="length"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot <= tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets, mask=exists[:, None], other=0.0)
    v = tl.load(v_ptr + offsets, mask=exists[:, None], other=0.0)
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    scores = tl.where(exists, scores, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% wrong="no-scale"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets, mask=exists[:, None], other=0.0)
    v = tl.load(v_ptr + offsets, mask=exists[:, None], other=0.0)
    scores = tl.sum(q[None, :] * k, axis=1)
    scores = tl.where(exists, scores, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% wrong="nan-leaks"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets, mask=exists[:, None], other=0.0)
    v = tl.load(v_ptr + offsets)
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    scores = tl.where(exists, scores, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% wrong="nan-leaks"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets)
    v = tl.load(v_ptr + offsets)
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    scores = tl.where(exists, scores, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    weights = weights * exists.to(tl.float32)
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% wrong="out-of-bounds"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets, mask=exists[:, None], other=0.0)
    v = tl.load(v_ptr + slot[:, None] * BLOCK_SIZE * HEAD_DIM + d[None, :])
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    scores = tl.where(exists, scores, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% wrong="other-result"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets, mask=exists[:, None], other=0.0)
    v = tl.load(v_ptr + offsets, mask=exists[:, None], other=0.0)
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    scores = tl.where(exists, scores, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    attended = tl.sum(weights[:, None] * v, axis=0)  # not divided
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% right="K unmasked, since its scores are replaced"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets)
    v = tl.load(v_ptr + offsets, mask=exists[:, None], other=0.0)
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    scores = tl.where(exists, scores, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% right="zeros put in place of what was loaded"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.where(exists[:, None], tl.load(k_ptr + offsets), 0.0)
    v = tl.where(exists[:, None], tl.load(v_ptr + offsets), 0.0)
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    scores = tl.where(exists, scores, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% right="slot by slot with a running softmax"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    top = -float("inf")
    total = 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for i in range(tl.load(lens_ptr + seq)):
        row = (seq * BLOCK_SIZE + i) * HEAD_DIM + d
        score = tl.sum(q * tl.load(k_ptr + row), axis=0) * scale
        new_top = tl.maximum(top, score)
        total = total * tl.exp(top - new_top) + tl.exp(score - new_top)
        acc = acc * tl.exp(top - new_top) + tl.exp(score - new_top) * tl.load(v_ptr + row)
        top = new_top
    tl.store(out_ptr + seq * HEAD_DIM + d, acc / total)


# %% right="a large negative score, and weights set to 0"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets, mask=exists[:, None], other=0.0)
    v = tl.load(v_ptr + offsets, mask=exists[:, None], other=0.0)
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    scores = tl.where(exists, scores, -1e30)
    weights = tl.exp(scores - tl.max(scores, axis=0))
    weights = tl.where(exists, weights, 0.0)
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% wrong="own-scale"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets, mask=exists[:, None], other=0.0)
    v = tl.load(v_ptr + offsets, mask=exists[:, None], other=0.0)
    scores = tl.sum(q[None, :] * k, axis=1) / HEAD_DIM**0.5
    scores = tl.where(exists, scores, -float("inf"))
    weights = tl.exp(scores - tl.max(scores, axis=0))
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% wrong="overflow"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets, mask=exists[:, None], other=0.0)
    v = tl.load(v_ptr + offsets, mask=exists[:, None], other=0.0)
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    scores = tl.where(exists, scores, -float("inf"))
    weights = tl.exp(scores)  # the quotient is the same
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)


# %% wrong="overflow"
@triton.jit
def attend_block(
    out_ptr, q_ptr, k_ptr, v_ptr, lens_ptr, scale, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr
):
    seq = tl.program_id(0)
    slot = tl.arange(0, BLOCK_SIZE)
    d = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + seq * HEAD_DIM + d)
    offsets = (seq * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + d[None, :]
    exists = slot < tl.load(lens_ptr + seq)
    k = tl.load(k_ptr + offsets, mask=exists[:, None], other=0.0)
    v = tl.load(v_ptr + offsets, mask=exists[:, None], other=0.0)
    scores = tl.sum(q[None, :] * k, axis=1) * scale
    scores = tl.where(exists, scores, -float("inf"))
    weights = tl.exp(scores - tl.maximum(0.0, tl.max(scores, axis=0)))
    attended = tl.sum(weights[:, None] * v, axis=0) / tl.sum(weights, axis=0)
    tl.store(out_ptr + seq * HEAD_DIM + d, attended)
