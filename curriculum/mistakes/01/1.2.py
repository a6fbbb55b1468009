# %% wrong="reserved-as-internal"
def split_waste(num_now, num_final, num_slots):
    return num_now, 0, num_slots - num_now


# %% wrong="internal-as-reserved"
def split_waste(num_now, num_final, num_slots):
    return num_now, num_slots - num_now, 0


# %% wrong="counted-twice"
def split_waste(num_now, num_final, num_slots):
    return (
        num_now,
        min(num_final, num_slots) - num_now,
        num_slots - num_now,
    )  # the tail of the last block again


# %% wrong="counted-twice"
def split_waste(num_now, num_final, num_slots):
    return num_final, num_final - num_now, num_slots - num_final


# %% wrong="beyond-the-slots"
def split_waste(num_now, num_final, num_slots):
    return num_now, num_final - num_now, max(0, num_slots - num_final)


# %% wrong="beyond-the-slots"
def split_waste(num_now, num_final, num_slots):
    return num_now, num_final - num_now, num_slots - num_final


# %% wrong="order"
def split_waste(num_now, num_final, num_slots):
    promised = min(num_final, num_slots)
    return num_now, num_slots - promised, promised - num_now


# %% wrong="other-split"
def split_waste(num_now, num_final, num_slots):
    return num_now


# %% wrong="other-split"
def split_waste(num_now, num_final, num_slots):
    return num_now, max(0, num_final - num_now - 1), max(0, num_slots - num_final)


# %% wrong="crashed"
def split_waste(num_now, num_final, num_slots):
    return num_now / 0, 0, 0


# %% wrong="unsolved"
def split_waste(num_now, num_final, num_slots):
    raise NotImplementedError("exercise 1.2: write this")


# %% right="slot by slot"
def split_waste(num_now, num_final, num_slots):
    kinds = ["used" if i < num_now else "reserved" if i < num_final else "internal" for i in range(num_slots)]
    return [kinds.count(kind) for kind in ("used", "reserved", "internal")]


# %% right="internal first, the rest by subtraction"
def never(final, slots):
    return max(0, slots - final)


def split_waste(now, final, slots):
    internal = never(final, slots)
    return now, slots - now - internal, internal


# %% right="NumPy histogram"
import numpy as np


def split_waste(num_now, num_final, num_slots):
    kinds = np.digitize(np.arange(num_slots), [num_now, num_final])
    return np.bincount(kinds, minlength=3)
