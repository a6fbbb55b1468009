"""Code that a lesson could print."""


def a_slot(blocks: list[int], i: int, size: int) -> int:
    """The slot of token i."""
    return blocks[i // size] * size + i % size
