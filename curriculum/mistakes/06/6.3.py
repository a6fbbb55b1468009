# %% wrong="no-op"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    host.data[:, host_blocks][:] = device.data[:, blocks]
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks][:] = host.data[:, host_blocks]
    host.free(host_blocks)
    return blocks


# %% wrong="no-op"
import numpy as np


def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    np.copyto(host.data[:, host_blocks], device.data[:, blocks])
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    np.copyto(device.data[:, blocks], host.data[:, host_blocks])
    host.free(host_blocks)
    return blocks


# %% wrong="no-op"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    target = host.data[:, host_blocks]
    target[...] = device.data[:, blocks]
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks] = host.data[:, host_blocks]
    host.free(host_blocks)
    return blocks


# %% wrong="no-op"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    host.data[:, host_blocks] = device.data[:, blocks]
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    host.free(host_blocks)
    return blocks


# %% wrong="freed-first"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    device.free(blocks)
    host.data[:, host_blocks] = device.data[:, blocks]
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    host.free(host_blocks)
    device.data[:, blocks] = host.data[:, host_blocks]
    return blocks


# %% wrong="freed-first"
def swap_out(device, host, blocks):
    return _move(device, host, blocks)


def swap_in(device, host, host_blocks):
    return _move(host, device, host_blocks)


def _move(source, target, blocks):
    source.free(blocks)  # so that there is room
    new = target.allocate(len(blocks))
    for old, now in zip(blocks, new):
        target.data[:, now] = source.data[:, old]
    return new


# %% wrong="one-layer"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    host.data[0, host_blocks] = device.data[0, blocks]
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    device.data[0, blocks] = host.data[0, host_blocks]
    host.free(host_blocks)
    return blocks


# %% wrong="order"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    host.data[:, host_blocks] = device.data[:, sorted(blocks)]
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks] = host.data[:, sorted(host_blocks)]
    host.free(host_blocks)
    return blocks


# %% wrong="order"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    host.data[:, host_blocks] = device.data[:, blocks]
    device.free(blocks)
    return host_blocks[::-1]


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks] = host.data[:, host_blocks]
    host.free(host_blocks)
    return blocks[::-1]


# %% wrong="not-freed"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    host.data[:, host_blocks] = device.data[:, blocks]
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks] = host.data[:, host_blocks]
    return blocks


# %% wrong="not-freed"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    host.data[:, host_blocks] = device.data[:, blocks]
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks] = host.data[:, host_blocks]
    return blocks


# %% wrong="bad-ids"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    host.data[:, host_blocks] = device.data[:, blocks]
    device.free(blocks)
    return blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks] = host.data[:, host_blocks]
    host.free(host_blocks)
    return blocks


# %% wrong="bad-ids"
def swap_out(device, host, blocks):
    host_blocks = host.free_ids[: len(blocks)]  # looked at, not taken
    if len(host_blocks) < len(blocks):
        raise OutOfBlocks(len(blocks))
    host.data[:, host_blocks] = device.data[:, blocks]
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.free_ids[: len(host_blocks)]
    if len(blocks) < len(host_blocks):
        raise OutOfBlocks(len(host_blocks))
    device.data[:, blocks] = host.data[:, host_blocks]
    host.free(host_blocks)
    return blocks


# %% wrong="bad-ids"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    host.data[:, host_blocks] = device.data[:, blocks]
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks] = host.data[:, host_blocks]
    host.free(host_blocks)


# %% wrong="wrong-copy"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    host.data[:, host_blocks] = device.data[:, blocks].swapaxes(1, 2).reshape(3, -1, 4, 2)
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks] = host.data[:, host_blocks]
    host.free(host_blocks)
    return blocks


# %% wrong="wrong-copy"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    host.data[:] = device.data[:, blocks[:1]]  # everybody gets the first
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks] = host.data[:, host_blocks]
    host.free(host_blocks)
    return blocks


# %% wrong="wrong-copy"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    host.data[:, host_blocks] = device.data[:, blocks]
    host.data[:, [i for i in range(host.data.shape[1]) if i not in host_blocks]] = 0  # a clean start
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks] = host.data[:, host_blocks]
    host.free(host_blocks)
    return blocks


# %% wrong="not-refused"
def swap_out(device, host, blocks):
    try:
        host_blocks = host.allocate(len(blocks))
    except OutOfBlocks:
        return []
    host.data[:, host_blocks] = device.data[:, blocks]
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    try:
        blocks = device.allocate(len(host_blocks))
    except OutOfBlocks:
        return []
    device.data[:, blocks] = host.data[:, host_blocks]
    host.free(host_blocks)
    return blocks


# %% wrong="half-done"
def swap_out(device, host, blocks):
    moved = []
    for block in blocks:  # one by one, until there is no room any more
        [place] = host.allocate(1)
        host.data[:, place] = device.data[:, block]
        device.free([block])
        moved.append(place)
    return moved


def swap_in(device, host, host_blocks):
    moved = []
    for block in host_blocks:
        [place] = device.allocate(1)
        device.data[:, place] = host.data[:, block]
        host.free([block])
        moved.append(place)
    return moved


# %% wrong="half-done"
def swap_out(device, host, blocks):
    kept = device.data[:, blocks]
    device.free(blocks)
    host_blocks = host.allocate(len(blocks))  # too late to fail
    host.data[:, host_blocks] = kept
    return host_blocks


def swap_in(device, host, host_blocks):
    kept = host.data[:, host_blocks]
    host.free(host_blocks)
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks] = kept
    return blocks


# %% wrong="crashed"
def swap_out(device, host, blocks):
    host_blocks = host.allocate(len(blocks))
    host[host_blocks] = device[blocks]
    device.free(blocks)
    return host_blocks


def swap_in(device, host, host_blocks):
    blocks = device.allocate(len(host_blocks))
    device.data[:, blocks] = host.data[:, host_blocks]
    host.free(host_blocks)
    return blocks


# %% right="one function for both ways, block by block into views"
def _move(source, target, blocks):
    new = target.allocate(len(blocks))
    for old, now in zip(blocks, new, strict=True):
        target.data[:, now][...] = source.data[:, old]  # one number as index: a view
    source.free(blocks)
    return new


def swap_out(device, host, blocks):
    return _move(device, host, blocks)


def swap_in(device, host, host_blocks):
    return _move(host, device, host_blocks)


# %% right="NumPy arrays of ids, a buffer, all layers in a loop"
import numpy as np


def swap_out(device, host, blocks):
    ids = np.array(blocks)
    new = np.array(host.allocate(len(ids)))
    for layer in range(len(device.data)):
        buffer = np.take(device.data[layer], ids, axis=0)
        np.put_along_axis(host.data[layer], new[:, None, None] + np.zeros(buffer.shape, int), buffer, axis=0)
    device.free(ids.tolist())
    return new


def swap_in(device, host, host_blocks):
    new = device.allocate(len(host_blocks))
    buffer = host.data[:, host_blocks].copy()
    host.free(host_blocks)  # the buffer is a copy, so this is early enough
    device.data[:, new, :, :] = buffer
    return tuple(new)
