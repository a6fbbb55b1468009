# %% wrong="unchanged"
merge = broken_merge


# %% wrong="weights-dropped"
def merge(tops, totals, accs):
    return accs.sum(axis=0) / totals.sum(axis=0)[:, None]


# %% wrong="averages"
def merge(tops, totals, accs):
    with np.errstate(all="ignore"):
        return (accs / totals[:, :, None]).mean(axis=0)


# %% wrong="overflow"
def merge(tops, totals, accs):
    with np.errstate(all="ignore"):
        share = np.exp(tops)  # relative to 0
        total = (share * totals).sum(axis=0)
        return (share[:, :, None] * accs).sum(axis=0) / total[:, None]


# %% wrong="overflow"
def merge(tops, totals, accs):
    with np.errstate(all="ignore"):
        share = np.exp(tops - tops[0])  # relative to the first
        total = (share * totals).sum(axis=0)
        return (share[:, :, None] * accs).sum(axis=0) / total[:, None]


# %% wrong="overflow"
def merge(tops, totals, accs):
    with np.errstate(all="ignore"):
        top, total, output = tops[0], totals[0], accs[0]
        for t, s, a in zip(tops[1:], totals[1:], accs[1:]):
            new = np.maximum(top, t)
            old_share, share = np.exp(top - new), np.exp(t - new)
            output = output * old_share[:, None] + (a / s[:, None]) * (s * share)[:, None]  # 0 / 0
            total, top = total * old_share + s * share, new
        return output / total[:, None]


# %% wrong="other-merge"
def merge(tops, totals, accs):
    share = np.exp(tops - tops.max(axis=0))
    output = (share[:, :, None] * accs).sum(axis=0)
    return output / totals.sum(axis=0)[:, None]


# %% wrong="other-merge"
def merge(tops, totals, accs):
    share = np.exp(tops - tops.max())  # one top for all heads is right, but the total is not of this head
    return (share[:, :, None] * accs).sum(axis=0) / (share * totals).sum()


# %% wrong="crashed"
def merge(tops, totals, accs):
    share = np.exp(tops - tops.max(axis=0))
    return (share * accs).sum(axis=0) / (share * totals).sum(axis=0)


# %% right="all at once"
def merge(tops, totals, accs):
    share = np.exp(tops - tops.max(axis=0))
    total = (share * totals).sum(axis=0)
    return np.einsum("sh,shd->hd", share, accs) / total[:, None]


# %% right="one after the other"
def absorb(state, part):
    top, total, acc = state
    new = np.maximum(top, part[0])
    old_share, share = np.exp(top - new), np.exp(part[0] - new)
    return new, total * old_share + part[1] * share, acc * old_share[:, None] + part[2] * share[:, None]


def merge(tops, totals, accs):
    present = [i for i in range(len(tops)) if np.isfinite(tops[i]).all()]
    state = tops[present[0]], totals[present[0]], accs[present[0]]
    for i in present[1:]:
        state = absorb(state, (tops[i], totals[i], accs[i]))
    return state[2] / state[1][:, None]


# %% right="by the log-sum-exp of each split"
def merge(tops, totals, accs):
    output = np.zeros(accs.shape[1:])
    for h in range(tops.shape[1]):
        kept = totals[:, h] > 0
        lse = tops[kept, h] + np.log(totals[kept, h])
        weights = np.exp(lse - np.logaddexp.reduce(lse))
        output[h] = weights @ (accs[kept, h] / totals[kept, h, None])
    return output


# %% wrong="overflow"
def merge(tops, totals, accs):
    """The attention over the tokens of all splits: [num_heads, head_dim]. Mended."""
    top = tops.max()  # the largest of all heads
    share = np.exp(tops - top)  # [num_splits, num_heads]
    total = np.zeros(tops.shape[1])
    output = np.zeros(accs.shape[1:])
    for split in range(len(tops)):
        total += share[split] * totals[split]
        output += share[split][:, None] * accs[split]
    return output / total[:, None]
