# %% wrong="all-tokens"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="padded"
def make_batch(token_ids, num_computed, tables, block_size):
    longest = max(len(t) - c for t, c in zip(token_ids, num_computed))
    ids, positions, slots = [], [], []
    for tokens, computed, table in zip(token_ids, num_computed, tables):
        new = list(range(computed, len(tokens)))
        pad = longest - len(new)
        ids += tokens[computed:] + [0] * pad
        positions += new + [0] * pad
        slots += [table[p // block_size] * block_size + p % block_size for p in new] + [-1] * pad
    starts = np.arange(len(token_ids) + 1) * longest
    width = max(map(len, tables))
    return {
        "token_ids": np.array(ids),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": starts,
        "seq_lens": np.array([len(t) for t in token_ids]),
        "sample_rows": starts[:-1] + [len(t) - c - 1 for t, c in zip(token_ids, num_computed)],
        "block_tables": np.array([t + [0] * (width - len(t)) for t in tables]),
    }


# %% wrong="positions-restart"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += range(len(new))
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="positions-flat"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.arange(len(row)),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="slots-next"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[(p + 1) // block_size] * block_size + (p + 1) % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="slots-logical"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [p // block_size * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="starts"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts[:-1]),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="starts"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array([len(t) - c for t, c in zip(token_ids, num_computed)]),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="lens-new-only"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.diff(starts),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="lens-before"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array(num_computed),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="sample-next"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]),
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="sample-first"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[:-1]),
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="tables"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([[0] * (width - len(table)) + table for table in tables]),
    }


# %% wrong="other-batch"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "context_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="other-batch"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += reversed(new)
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="crashed"
def make_batch(token_ids, num_computed, tables, block_size):
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array(tables, dtype=int).reshape(len(tables), width),
    }


# %% wrong="not-arrays"
def slot_of(table, p, size):
    block, offset = divmod(p, size)
    return table[block] * size + offset


def make_batch(token_ids, num_computed, tables, block_size):
    batch = {name: [] for name in ("token_ids", "positions", "slot_mapping", "seq_lens", "sample_rows")}
    batch["query_start_loc"], batch["block_tables"] = [0], []
    for i in range(len(token_ids)):
        for p in range(num_computed[i], len(token_ids[i])):
            batch["token_ids"].append(token_ids[i][p])
            batch["positions"].append(p)
            batch["slot_mapping"].append(slot_of(tables[i], p, block_size))
        batch["seq_lens"].append(len(token_ids[i]))
        batch["query_start_loc"].append(len(batch["token_ids"]))
        batch["sample_rows"].append(len(batch["token_ids"]) - 1)
        batch["block_tables"].append(tables[i] + [-1] * (max(map(len, tables)) - len(tables[i])))
    return batch


# %% right="vectorised"
def make_batch(token_ids, num_computed, tables, block_size):
    seq_lens, first = np.array([len(t) for t in token_ids]), np.array(num_computed)
    starts = np.concatenate([[0], np.cumsum(seq_lens - first)]).astype(np.int32)
    sequence = np.repeat(np.arange(len(first)), seq_lens - first)
    positions = np.arange(starts[-1]) - starts[sequence] + first[sequence]
    block_tables = np.full((len(tables), max(map(len, tables)) + 1), 10**6, dtype=np.int32)
    for row, table in zip(block_tables, tables):
        row[: len(table)] = table
    slots = block_tables[sequence, positions // block_size] * block_size + positions % block_size
    ids = np.concatenate([np.asarray(t[c:]) for t, c in zip(token_ids, num_computed)])
    return dict(
        token_ids=ids,
        positions=positions,
        slot_mapping=slots,
        query_start_loc=starts,
        seq_lens=seq_lens,
        sample_rows=starts[1:] - 1,
        block_tables=block_tables,
    )


# %% wrong="not-arrays"
def make_batch(token_ids, num_computed, tables, block_size):
    """The arrays of one step, by name."""
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions, dtype=np.float32),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% wrong="not-arrays"
def make_batch(token_ids, num_computed, tables, block_size):
    """The arrays of one step, by name."""
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables], dtype=object),
    }


# %% wrong="changes-arguments"
def make_batch(token_ids, num_computed, tables, block_size):
    """The arrays of one step, by name."""
    row, positions, slots, starts = [], [], [], [0]
    for tokens, computed, table in zip(token_ids, num_computed, tables, strict=True):
        new = range(computed, len(tokens))
        row += tokens[computed:]
        positions += new
        slots += [table[p // block_size] * block_size + p % block_size for p in new]
        starts.append(len(row))
    for table in tables:  # padded, in the lists of the caller
        table += [0] * (max(map(len, tables)) - len(table))
    width = max(len(table) for table in tables)
    return {
        "token_ids": np.array(row),
        "positions": np.array(positions),
        "slot_mapping": np.array(slots),
        "query_start_loc": np.array(starts),
        "seq_lens": np.array([len(tokens) for tokens in token_ids]),
        "sample_rows": np.array(starts[1:]) - 1,
        "block_tables": np.array([table + [0] * (width - len(table)) for table in tables]),
    }


# %% right="lists first, arrays at the end"
def make_batch(token_ids, num_computed, tables, block_size):
    sequences = list(zip(token_ids, num_computed, tables))
    places = [(i, p) for i, (tokens, done, _) in enumerate(sequences) for p in range(done, len(tokens))]
    starts = [0]
    for tokens, done, _ in sequences:
        starts.append(starts[-1] + len(tokens) - done)
    width = max(map(len, tables))
    batch = {
        "token_ids": [token_ids[i][p] for i, p in places],
        "positions": [p for _, p in places],
        "slot_mapping": [tables[i][p // block_size] * block_size + p % block_size for i, p in places],
        "query_start_loc": starts,
        "seq_lens": list(map(len, token_ids)),
        "sample_rows": [start - 1 for start in starts[1:]],
        "block_tables": [[*table, *[-1] * (width - len(table))] for table in tables],
    }
    return {name: np.array(values, dtype=np.int32) for name, values in batch.items()}
