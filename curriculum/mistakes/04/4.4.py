# %% wrong="logical"
def beam_blocks(prompt_tokens, parents, block_size):
    width = len(parents[-1]) if parents else 1
    return width * -(-(prompt_tokens + len(parents)) // block_size)


# %% wrong="prompt-only"
def beam_blocks(prompt_tokens, parents, block_size):
    width = len(parents[-1]) if parents else 1
    shared = prompt_tokens // block_size
    return shared + width * (-(-(prompt_tokens + len(parents)) // block_size) - shared)


# %% wrong="partial-shared"
def beam_blocks(prompt_tokens, parents, block_size):
    shared = -(-prompt_tokens // block_size)  # with the partly filled one
    total = prompt_tokens + len(parents)
    alive = set(range(len(parents[-1]))) if parents else {0}
    versions = {}
    for step in range(len(parents) - 1, -1, -1):
        versions.setdefault((prompt_tokens + step) // block_size, len(alive))
        alive = {parents[step][beam] for beam in alive}
    return shared + sum(versions[block] for block in range(shared, -(-total // block_size)))


# %% wrong="dead-beams"
def beam_blocks(prompt_tokens, parents, block_size):
    total, count = prompt_tokens + len(parents), 0
    if not parents:
        return -(-prompt_tokens // block_size)
    for block in range(-(-total // block_size)):
        step = (block + 1) * block_size - prompt_tokens  # the first step after it was full
        if step <= 0:
            count += 1
        elif step < len(parents):
            count += len(set(parents[step]))  # those that went on then
        else:
            count += len(parents[-1])
    return count


# %% wrong="tokens"
def beam_blocks(prompt_tokens, parents, block_size):
    alive = set(range(len(parents[-1]))) if parents else set()
    tokens = prompt_tokens
    for row in reversed(parents):
        tokens += len(alive)
        alive = {row[beam] for beam in alive}
    return -(-tokens // block_size)


# %% wrong="other-number"
def beam_blocks(prompt_tokens, parents, block_size):
    # One token too few: the one that is written in the last step
    alive = set(range(len(parents[-1]))) if parents else {0}
    versions = {}
    for step in range(len(parents) - 2, -1, -1):
        alive = {parents[step + 1][beam] for beam in alive}
        versions.setdefault((prompt_tokens + step) // block_size, len(alive))
    total = prompt_tokens + max(0, len(parents) - 1)
    return sum(versions.get(block, 1) for block in range(-(-total // block_size)))


# %% wrong="crashed"
def beam_blocks(prompt_tokens, parents, block_size):
    width = len(parents[0])  # there may be no step at all
    beams = [[("prompt", i) for i in range(prompt_tokens)] for _ in range(width)]
    for step, row in enumerate(parents):
        beams = [beams[parent] + [(step, i)] for i, parent in enumerate(row)]
    last = [
        [beam[min(len(beam), end) - 1] for end in range(block_size, len(beam) + block_size, block_size)]
        for beam in beams
    ]
    return len({block for beam in last for block in beam})


# %% right="a simulation with names"
def beam_blocks(prompt_tokens, parents, block_size):
    beams = [[("prompt", i) for i in range(-(-prompt_tokens // block_size))]]
    for step, row in enumerate(parents):
        logical = (prompt_tokens + step) // block_size
        beams = [beams[parent][:logical] + [(step, i)] for i, parent in enumerate(row)]
    return len({name for beam in beams for name in beam})


# %% right="the beams' tokens, cut into blocks"
import itertools


def beam_blocks(prompt_tokens, parents, block_size):
    fresh = itertools.count()
    beams = [[next(fresh) for _ in range(prompt_tokens)]]
    for row in parents:
        beams = [[*beams[parent], next(fresh)] for parent in row]
    held = set()
    for beam in beams:
        for end in range(block_size, len(beam) + block_size, block_size):
            held.add(tuple(beam[:end]))
    return len(held)


# %% right="counts and copy-on-write, as a pool would"
def beam_blocks(prompt_tokens, parents, block_size):
    counts, ids = {}, iter(range(10**9))

    def take():
        block = next(ids)
        counts[block] = 1
        return block

    beams = [[take() for _ in range(0, prompt_tokens, block_size)]]
    for step, row in enumerate(parents):
        grown = [list(beams[parent]) for parent in row]
        for table in grown:
            for block in table:
                counts[block] += 1
        for table in beams:
            for block in table:
                counts[block] -= 1
        for table in grown:
            if (prompt_tokens + step) % block_size == 0:
                table.append(take())
            elif counts[table[-1]] > 1:
                counts[table[-1]] -= 1
                table[-1] = take()
        beams = grown
    return np.int64(sum(count > 0 for count in counts.values()))


# %% right="NumPy, one row of ancestors for each step"
def beam_blocks(prompt_tokens, parents, block_size):
    if not parents:
        return float(np.ceil(prompt_tokens / block_size))
    ancestors = [np.arange(len(parents[-1]))]
    for row in parents[:0:-1]:
        ancestors.append(np.array(row)[ancestors[-1]])
    alive = [1] * prompt_tokens + [len(np.unique(a)) for a in ancestors[::-1]]
    return sum(alive[block_size - 1 :: block_size]) + (alive[-1] if len(alive) % block_size else 0)


# %% wrong="changes-arguments"
def beam_blocks(prompt_tokens, parents, block_size):
    """Physical blocks after the last step. parents[step][i]: which beam the new beam i extends."""
    num_tokens = prompt_tokens + len(parents)
    alive = set(range(len(parents[-1]))) if parents else {0}
    steps = len(parents)
    versions = {}  # logical block -> in how many versions the living beams have it
    for step in range(steps - 1, -1, -1):
        token = prompt_tokens + step  # the token that was written in this step
        versions.setdefault(token // block_size, len(alive))
        alive = {parents[step][beam] for beam in alive}
        parents.pop()  # done with this step
    blocks = range(-(-num_tokens // block_size))
    return sum(versions.get(block, 1) for block in blocks)
