# %% wrong="wrong-row"
def generate(model, prompts, new_tokens, free):
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        for i in running:
            grow(tables[i], len(tokens[i]), free, model.block_size)
        batch = make_batch(
            [tokens[i] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for row, i in enumerate(running):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[row].argmax()))
            if len(tokens[i]) == total[i]:
                free += tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]


# %% wrong="wrong-row"
def generate(model, prompts, new_tokens, free):
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        for i in running:
            grow(tables[i], len(tokens[i]), free, model.block_size)
        batch = make_batch(
            [tokens[i] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["query_start_loc"]):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[row].argmax()))
            if len(tokens[i]) == total[i]:
                free += tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]


# %% wrong="wrong-row"
def generate(model, prompts, new_tokens, free):
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        for i in running:
            grow(tables[i], len(tokens[i]), free, model.block_size)
        batch = make_batch(
            [tokens[i] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["sample_rows"], strict=True):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[-1].argmax()))
            if len(tokens[i]) == total[i]:
                free += tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]


# %% wrong="padding"
def generate(model, prompts, new_tokens, free):
    longest = max(map(len, prompts))
    prompts = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        for i in running:
            grow(tables[i], len(tokens[i]), free, model.block_size)
        batch = make_batch(
            [tokens[i] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["sample_rows"], strict=True):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[row].argmax()))
            if len(tokens[i]) == total[i]:
                free += tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]


# %% wrong="padding"
def generate(model, prompts, new_tokens, free):
    longest = max(map(len, prompts))
    prompts = [prompt + [0] * (longest - len(prompt)) for prompt in prompts]
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        for i in running:
            grow(tables[i], len(tokens[i]), free, model.block_size)
        batch = make_batch(
            [tokens[i] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["sample_rows"], strict=True):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[row].argmax()))
            if len(tokens[i]) == total[i]:
                free += tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]


# %% wrong="lengths"
def generate(model, prompts, new_tokens, free):
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        for i in running:
            grow(tables[i], len(tokens[i]), free, model.block_size)
        batch = make_batch(
            [tokens[i] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["sample_rows"], strict=True):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[row].argmax()))
            if len(tokens[i]) == total[i]:
                free += tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return tokens


# %% wrong="lengths"
def generate(model, prompts, new_tokens, free):
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + max(new_tokens) for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        for i in running:
            grow(tables[i], len(tokens[i]), free, model.block_size)
        batch = make_batch(
            [tokens[i] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["sample_rows"], strict=True):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[row].argmax()))
            if len(tokens[i]) == total[i]:
                free += tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]


# %% wrong="one-by-one"
def generate(model, prompts, new_tokens, free):
    answers = []
    for prompt, n in zip(prompts, new_tokens):
        tokens, computed, table = list(prompt), 0, []
        while len(tokens) < len(prompt) + n:
            grow(table, len(tokens), free, model.block_size)
            batch = make_batch([tokens], [computed], [table], model.block_size)
            computed = len(tokens)
            tokens.append(int(model.forward(batch)[-1].argmax()))
        free += table
        answers.append(tokens[len(prompt) :])
    return answers


# %% wrong="computed-again"
def generate(model, prompts, new_tokens, free):
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        for i in running:
            grow(tables[i], len(tokens[i]), free, model.block_size)
        batch = make_batch(
            [tokens[i] for i in running],
            [0 for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["sample_rows"], strict=True):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[row].argmax()))
            if len(tokens[i]) == total[i]:
                free += tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]


# %% wrong="done-stays"
def generate(model, prompts, new_tokens, free):
    tokens, computed, tables = [list(p) for p in prompts], [0] * len(prompts), [[] for _ in prompts]
    for _ in range(max(new_tokens)):
        for row, table in zip(tokens, tables):
            grow(table, len(row), free, model.block_size)
        batch = make_batch(tokens, computed, tables, model.block_size)
        logits = model.forward(batch)
        computed = [len(row) for row in tokens]
        for row, at in zip(tokens, batch["sample_rows"]):
            row.append(int(logits[at].argmax()))
    for table in tables:
        free += table
    return [row[len(p) : len(p) + n] for row, p, n in zip(tokens, prompts, new_tokens)]


# %% wrong="blocks-kept"
def generate(model, prompts, new_tokens, free):
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        for i in running:
            grow(tables[i], len(tokens[i]), free, model.block_size)
        batch = make_batch(
            [tokens[i] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["sample_rows"], strict=True):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[row].argmax()))
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]


# %% wrong="blocks-kept"
def generate(model, prompts, new_tokens, free):
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        for i in running:
            grow(tables[i], len(tokens[i]), free, model.block_size)
        batch = make_batch(
            [tokens[i] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["sample_rows"], strict=True):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[row].argmax()))
            if len(tokens[i]) == total[i]:
                free = free + tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]


# %% wrong="other-tokens"
def generate(model, prompts, new_tokens, free):
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        for i in running:
            grow(tables[i], len(tokens[i]), free, model.block_size)
        batch = make_batch(
            [tokens[i] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["sample_rows"], strict=True):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[row].argmin()))
            if len(tokens[i]) == total[i]:
                free += tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]


# %% wrong="crashed"
def generate(model, prompts, new_tokens, free):
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        batch = make_batch(
            [tokens[i] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["sample_rows"], strict=True):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[row].argmax()))
            if len(tokens[i]) == total[i]:
                free += tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]


# %% right="a class for a request"
class Request:
    def __init__(self, prompt, count):
        self.tokens, self.wanted, self.start = list(prompt), len(prompt) + count, len(prompt)
        self.computed, self.blocks = 0, []

    @property
    def done(self):
        return len(self.tokens) >= self.wanted


def generate(model, prompts, new_tokens, free):
    requests = [Request(p, n) for p, n in zip(prompts, new_tokens)]
    while waiting := [r for r in requests if not r.done]:
        for r in waiting:
            grow(r.blocks, len(r.tokens), free, model.block_size)
        batch = make_batch(
            [r.tokens for r in waiting],
            [r.computed for r in waiting],
            [r.blocks for r in waiting],
            model.block_size,
        )
        chosen = model.forward(batch)[batch["sample_rows"]].argmax(axis=-1)
        for r, token in zip(waiting, chosen):
            r.computed = len(r.tokens)
            r.tokens.append(int(token))
    for r in requests:
        free.extend(r.blocks)
    return [r.tokens[r.start :] for r in requests]


# %% right="prefill first, then decode"
def generate(model, prompts, new_tokens, free):
    size, everyone = model.block_size, range(len(prompts))
    tables = [[] for _ in prompts]
    for i in everyone:  # room for the whole answer at once
        grow(tables[i], len(prompts[i]) + new_tokens[i], free, size)
    batch = make_batch(prompts, [0] * len(prompts), tables, size)
    logits = model.forward(batch)
    answers = [[logits[batch["query_start_loc"][i + 1] - 1].argmax()] for i in everyone]
    while alive := [i for i in everyone if len(answers[i]) < new_tokens[i]]:
        tokens = [prompts[i] + answers[i] for i in alive]
        logits = model.forward(
            make_batch(tokens, [len(t) - 1 for t in tokens], [tables[i] for i in alive], size)
        )
        for i, row in zip(alive, logits):
            answers[i].append(row.argmax())
    for table in tables:
        free += table
    return answers


# %% wrong="changes-arguments"
def generate(model, prompts, new_tokens, free):
    """The new tokens of each request."""
    tokens, lengths = prompts, [len(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        for i in running:
            grow(tables[i], len(tokens[i]), free, model.block_size)
        batch = make_batch(
            [tokens[i] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["sample_rows"], strict=True):
            computed[i] = len(tokens[i])
            tokens[i].append(int(logits[row].argmax()))
            if len(tokens[i]) == total[i]:
                free += tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[n:] for row, n in zip(tokens, lengths, strict=True)]


# %% wrong="wrong-passes"
def generate(model, prompts, new_tokens, free):
    """Prefills in chunks, so the first passes do not compute all that is left."""
    tokens = [list(prompt) for prompt in prompts]
    computed, tables = [0] * len(prompts), [[] for _ in prompts]
    total = [len(prompt) + n for prompt, n in zip(prompts, new_tokens, strict=True)]
    running = list(range(len(prompts)))
    while running:
        until = {i: min(len(tokens[i]), computed[i] + 2) for i in running}
        for i in running:
            grow(tables[i], until[i], free, model.block_size)
        batch = make_batch(
            [tokens[i][: until[i]] for i in running],
            [computed[i] for i in running],
            [tables[i] for i in running],
            model.block_size,
        )
        logits = model.forward(batch)
        for i, row in zip(running, batch["sample_rows"], strict=True):
            computed[i] = until[i]
            if computed[i] < len(tokens[i]):
                continue
            tokens[i].append(int(logits[row].argmax()))
            if len(tokens[i]) == total[i]:
                free += tables[i]
        running = [i for i in running if len(tokens[i]) < total[i]]
    return [row[len(prompt) :] for row, prompt in zip(tokens, prompts, strict=True)]
