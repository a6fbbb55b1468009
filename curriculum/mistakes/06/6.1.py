# %% wrong="no-batch"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return dict(batch)


# %% wrong="no-batch"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    return [request["id"] for request in running]  # who, but not how much


# %% wrong="past-budget"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, left))
            budget = max(0, budget - left)
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], request["tokens"]))  # the whole prompt, whatever is left
        budget = max(0, budget - request["tokens"])
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="past-budget"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))  # a decode costs nothing
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="decode-waits"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch = []
    for request in running:  # in order of age, prompts and decodes alike
        left = request["tokens"] - request["computed"]
        if left == 1 and request["tokens"] > request["blocks"] * block_size:
            num_free -= 1
        if budget > 0:
            batch.append((request["id"], min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="decode-waits"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    prefills = [pair for pair in batch if pair[1] > 1]
    return prefills + [
        pair for pair in batch if pair[1] == 1
    ]  # prompts first, to have their first token soon


# %% wrong="not-chunked"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if left <= budget:  # it does not fit into this step
            batch.append((name, left))
            budget -= left
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="not-chunked"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if request["tokens"] > budget or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="overtaken"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            continue  # perhaps the next one fits
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="overtaken"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in sorted(waiting, key=lambda r: r["tokens"]):  # the short ones first
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="too-many-seqs"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="too-many-seqs"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs  # those that run already are forgotten
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="no-growth"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="no-growth"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = request["tokens"] // block_size
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="blocks-forgotten"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        places -= 1
    return batch


# %% wrong="blocks-forgotten"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="left-waiting"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 >= num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="left-waiting"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks + 1  # the one to grow into is only to be there
        places -= 1
    return batch


# %% wrong="left-waiting"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting[:1]:  # one a step
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="other-batch"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return [pair for pair in batch if pair[1]] + [
        (request["id"], 0) for request in waiting[:9] if request["id"] not in dict(batch)
    ]


# %% wrong="other-batch"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    batch, prefilling = [], []
    for request in running:
        left = request["tokens"] - request["computed"]
        if left > 1:
            left -= 1  # the last one is left for the decode
            prefilling.append((request["id"], left))
        else:
            num_free -= request["tokens"] > request["blocks"] * block_size
            batch.append((request["id"], 1))
            budget -= 1
    for name, left in prefilling:
        if budget > 0:
            batch.append((name, min(left, budget)))
            budget -= batch[-1][1]
    places = max_seqs - len(running)
    for request in waiting:
        blocks = -(-request["tokens"] // block_size)
        if budget == 0 or places == 0 or blocks + 1 > num_free:
            break
        batch.append((request["id"], min(request["tokens"], budget)))
        budget -= batch[-1][1]
        num_free -= blocks
        places -= 1
    return batch


# %% wrong="crashed"
def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    return [(request.id, 1) for request in running + waiting]  # a dictionary has no attributes


# %% right="helper functions and a class for what is left"
from dataclasses import dataclass


@dataclass
class Left:
    tokens: int
    blocks: int
    places: int


def _left(request):
    return request["tokens"] - request["computed"]


def _take(left, request):
    n = min(left.tokens, _left(request))
    left.tokens -= n
    return [[request["id"], n]] if n else []


def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    def blocks_of(request):
        return (request["tokens"] + block_size - 1) // block_size

    left = Left(budget, num_free, max_seqs - len(running))
    batch = []
    for request in filter(lambda r: _left(r) == 1, running):
        left.blocks -= blocks_of(request) - request["blocks"]
        batch += _take(left, request)
    for request in filter(lambda r: _left(r) > 1, running):
        batch += _take(left, request)
    for request in waiting:
        if not left.tokens or not left.places or left.blocks <= blocks_of(request):
            return batch
        left.blocks -= blocks_of(request)
        left.places -= 1
        batch += _take(left, request)
    return batch


# %% right="a generator, changing its arguments"
def _batch(running, waiting, free, budget, size, max_seqs):
    import math

    for request in sorted(running, key=lambda r: r["tokens"] - r["computed"] > 1):  # sorted is stable
        n = min(budget, request["tokens"] - request["computed"])
        if request["tokens"] - request["computed"] == 1 and request["computed"] % size == 0:
            free -= 1
        budget -= n
        if n > 0:
            yield request["id"], n
    while waiting and budget and len(running) < max_seqs:
        head = waiting[0]
        wanted = math.ceil(head["tokens"] / size)
        if wanted >= free:
            return
        running.append(waiting.pop(0))
        free -= wanted
        n = min(budget, head["tokens"])
        budget -= n
        yield head["id"], n


def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    return tuple(_batch(running, waiting, num_free, budget, block_size, max_seqs))


# %% right="NumPy"
import numpy as np


def schedule(running, waiting, num_free, budget, block_size, max_seqs):
    left = np.array([r["tokens"] - r["computed"] for r in running], dtype=int)
    order = np.argsort(left > 1, kind="stable")
    ends = np.minimum(np.cumsum(left[order]), budget)
    counts = np.diff(ends, prepend=0)
    batch = [(running[i]["id"], n) for i, n in zip(order, counts) if n > 0]
    grown = [
        r for r in running if r["tokens"] - r["computed"] == 1 and r["tokens"] > r["blocks"] * block_size
    ]
    free = num_free - len(grown)
    budget -= int(counts.sum())
    for place, request in enumerate(waiting, len(running)):
        blocks = np.ceil(request["tokens"] / block_size)
        if place >= max_seqs or budget <= 0 or blocks + 1 > free:
            break
        n = np.minimum(budget, request["tokens"])
        batch.append((request["id"], n))
        budget, free = budget - n, free - blocks
    return batch
