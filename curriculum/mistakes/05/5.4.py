# %% wrong="averages"
def merge(out_a, lse_a, out_b, lse_b):
    return (out_a + out_b) / 2, np.logaddexp(lse_a, lse_b)


# %% wrong="averages"
def merge(out_a, lse_a, out_b, lse_b):
    return out_a + out_b, np.logaddexp(lse_a, lse_b)


# %% wrong="ignores-lse"
def merge(out_a, lse_a, out_b, lse_b):
    total = lse_a + lse_b
    return (lse_a[:, None] * out_a + lse_b[:, None] * out_b) / total[:, None], total


# %% wrong="lse-wrong"
def merge(out_a, lse_a, out_b, lse_b):
    weight = (1 / (1 + np.exp(lse_b - lse_a)))[:, None]
    return weight * out_a + (1 - weight) * out_b, lse_a + lse_b


# %% wrong="lse-wrong"
def merge(out_a, lse_a, out_b, lse_b):
    weight = (1 / (1 + np.exp(lse_b - lse_a)))[:, None]
    return weight * out_a + (1 - weight) * out_b, np.maximum(lse_a, lse_b)


# %% wrong="overflow"
def merge(out_a, lse_a, out_b, lse_b):
    a, b = np.exp(lse_a), np.exp(lse_b)
    return (a[:, None] * out_a + b[:, None] * out_b) / (a + b)[:, None], np.log(a + b)


# %% wrong="empty"
def merge(out_a, lse_a, out_b, lse_b):
    top = np.maximum(lse_a, lse_b)
    a, b = np.exp(lse_a - top), np.exp(lse_b - top)
    return (a[:, None] * out_a + b[:, None] * out_b) / (a + b)[:, None], top + np.log(a + b)


# %% wrong="empty"
def merge(out_a, lse_a, out_b, lse_b):
    top = np.maximum(lse_a, lse_b)
    shift = np.where(np.isneginf(top), 0, top)
    a, b = np.exp(lse_a - shift), np.exp(lse_b - shift)
    total = np.where(a + b == 0, 1, a + b)
    return (a[:, None] * out_a + b[:, None] * out_b) / total[:, None], shift + np.log(a + b)  # 0 * NaN


# %% wrong="no-pair"
def merge(out_a, lse_a, out_b, lse_b):
    a, b = np.exp(lse_a), np.exp(lse_b)
    return (a[:, None] * out_a + b[:, None] * out_b) / (a + b)[:, None]


# %% wrong="other-merge"
def merge(out_a, lse_a, out_b, lse_b):
    weight = (1 / (1 + np.exp(lse_a - lse_b)))[:, None]  # the wrong way round
    return weight * out_a + (1 - weight) * out_b, np.logaddexp(lse_a, lse_b)


# %% right="logaddexp, and weights relative to the whole"
def merge(out_a, lse_a, out_b, lse_b):
    lse = np.logaddexp(lse_a, lse_b)
    shift = np.where(np.isneginf(lse), 0, lse)
    out = np.zeros_like(out_a, dtype=float)
    for part, part_lse in ((out_a, lse_a), (out_b, lse_b)):
        there = ~np.isneginf(part_lse)
        out[there] += np.exp(part_lse - shift)[there, None] * part[there]
    return out, lse


# %% right="head by head, in plain Python"
import math


def merge(out_a, lse_a, out_b, lse_b):
    out, lse = np.zeros(out_a.shape), np.full(len(lse_a), -np.inf)
    for h in range(len(lse_a)):
        both = [(out_a[h], float(lse_a[h])), (out_b[h], float(lse_b[h]))]
        parts = [(result, log_sum) for result, log_sum in both if log_sum != -np.inf]
        if parts:
            top = max(log_sum for _, log_sum in parts)
            total = sum(math.exp(log_sum - top) for _, log_sum in parts)
            out[h] = sum(math.exp(log_sum - top) / total * result for result, log_sum in parts)
            lse[h] = top + math.log(total)
    return [out, lse]


# %% right="stacked, as the kernel does it"
def merge(out_a, lse_a, out_b, lse_b):
    lse = np.stack([lse_a, lse_b])
    parts = np.where(np.isneginf(lse)[:, :, None], 0, np.stack([out_a, out_b]))
    top = lse.max(axis=0)
    weights = np.exp(lse - np.where(top == -np.inf, 0, top))
    total = weights.sum(axis=0)
    with np.errstate(divide="ignore"):
        return (weights[:, :, None] * parts).sum(axis=0) / np.maximum(total, 1e-300)[:, None], top + np.log(
            np.where(total > 0, total, 1)
        )


# %% wrong="changes-arguments"
def merge(out_a, lse_a, out_b, lse_b):
    """Attention over two parts of a context, from the attention over each."""
    out_a[np.isneginf(lse_a)] = 0.0  # what an empty part holds must not contribute
    out_b[np.isneginf(lse_b)] = 0.0
    top = np.maximum(lse_a, lse_b)
    shift = np.where(np.isneginf(top), 0.0, top)
    weight_a, weight_b = np.exp(lse_a - shift), np.exp(lse_b - shift)
    total = weight_a + weight_b
    a = np.where((weight_a > 0)[:, None], out_a, 0.0) * weight_a[:, None]
    b = np.where((weight_b > 0)[:, None], out_b, 0.0) * weight_b[:, None]
    out = (a + b) / np.where(total == 0, 1.0, total)[:, None]
    with np.errstate(divide="ignore"):
        return out, shift + np.log(total)
