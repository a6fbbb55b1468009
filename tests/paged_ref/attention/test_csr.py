"""Block tables to compressed rows and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paged_ref.attention.csr import from_csr, to_csr


def test_the_drawn_example() -> None:
    tables = np.array([[7, 1, 4, -9], [5, -9, -9, -9]], np.int32)
    indptr, indices, last = to_csr(tables, np.array([9, 2]), 4)
    assert indptr.tolist() == [0, 3, 4]
    assert indices.tolist() == [7, 1, 4, 5]
    assert last.tolist() == [1, 2]


@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_there_and_back(block_size: int) -> None:
    rng = np.random.default_rng(block_size)
    lens = np.array([0, 1, block_size - 1, block_size, block_size + 1, 2 * block_size, 100], np.int32)
    needed = -(-lens // block_size)
    tables = (
        rng.permutation(1000)[: len(lens) * 128].reshape(-1, 128)[: len(lens)] if block_size == 1 else None
    )
    if tables is None:
        tables = rng.permutation(len(lens) * 128).reshape(len(lens), 128)
    tables = torch.from_numpy(tables.astype(np.int32))
    back_tables, back_lens = from_csr(*to_csr(tables, torch.from_numpy(lens), block_size), block_size)
    assert isinstance(back_tables, torch.Tensor)
    assert back_lens.tolist() == lens.tolist()
    for i, n in enumerate(needed):
        assert back_tables[i, :n].tolist() == tables[i, :n].tolist()
        assert (back_tables[i, n:] == -1).all()


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match=r"seq_lens\[1\] = 9"):
        to_csr(np.zeros((2, 2), np.int32), np.array([8, 9]), 4)
    with pytest.raises(ValueError, match="block_size = 0"):
        to_csr(np.zeros((2, 2), np.int32), np.array([8, 8]), 0)
    with pytest.raises(ValueError, match="must rise"):
        from_csr(np.array([0, 3]), np.array([1, 2]), np.array([1]), 4)
    with pytest.raises(ValueError, match=r"kv_last_page_len\[0\] = 5"):
        from_csr(np.array([0, 1]), np.array([3]), np.array([5]), 4)
