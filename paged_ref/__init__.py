"""paged_ref: PagedAttention, written to be read.

The README lists the files in reading order; the first lines of each file say which chapter teaches it. Importing this
package loads none of torch, triton or transformers: each public name is imported from its module on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"  # pyproject.toml takes it from here

if TYPE_CHECKING:
    from .attention import paged_attention as paged_attention
    from .attention.csr import from_csr as from_csr
    from .attention.csr import to_csr as to_csr
    from .blocks.block_pool import BlockPool as BlockPool
    from .blocks.block_pool import OutOfBlocks as OutOfBlocks
    from .blocks.block_table import BlockTable as BlockTable
    from .blocks.kv_cache import KVCache as KVCache
    from .blocks.kv_cache import write_kv as write_kv
    from .generation.llm import LLM as LLM
    from .generation.outputs import RequestOutput as RequestOutput
    from .sampling.params import SamplingParams as SamplingParams
    from .sizing import MODELS as MODELS
    from .sizing import ModelShape as ModelShape

_HOME = {
    "BlockPool": "blocks.block_pool",
    "OutOfBlocks": "blocks.block_pool",
    "BlockTable": "blocks.block_table",
    "KVCache": "blocks.kv_cache",
    "write_kv": "blocks.kv_cache",
    "paged_attention": "attention",
    "to_csr": "attention.csr",
    "from_csr": "attention.csr",
    "LLM": "generation.llm",
    "RequestOutput": "generation.outputs",
    "SamplingParams": "sampling.params",
    "MODELS": "sizing",
    "ModelShape": "sizing",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'paged_ref' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
