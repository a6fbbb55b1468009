"""How large a KV cache is: the arithmetic of chapter 1, without a model in memory.

A token's keys and values take, in every layer, one vector of `head_dim` numbers for each KV head, twice:

    bytes per token = 2 (K and V) * num_layers * num_kv_heads * head_dim * bytes per number

Units: everything is in bytes. 1 GB = 10^9 bytes and 1 GiB = 2^30 bytes; names say which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BYTES_PER_NUMBER = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True)
class ModelShape:
    """What the size of a decoder's KV cache depends on.

    Attributes:
        num_layers: layers that keep keys and values.
        num_heads: query heads. They do not change the cache's size.
        num_kv_heads: key/value heads: num_heads (MHA), fewer (GQA), or 1 (MQA).
        head_dim: numbers in one head's key, and in its value.
        dtype: how a number is stored: a key of `BYTES_PER_NUMBER`.
    """

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for field in ("num_layers", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, field) < 1:
                raise ValueError(f"{self.name}: {field} = {getattr(self, field)}: it must be 1 or more")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.name}: {self.num_heads} query heads cannot be shared out evenly over "
                f"{self.num_kv_heads} KV heads"
            )
        if self.dtype not in BYTES_PER_NUMBER:
            raise ValueError(
                f"{self.name}: unknown dtype {self.dtype!r}: one of {', '.join(BYTES_PER_NUMBER)}"
            )

    @classmethod
    def from_config(cls, config: Any, dtype: str = "bfloat16") -> ModelShape:
        """Read the shape from a transformers config (or anything with the same attribute names).

        Raises:
            ValueError: it describes no attention layers (a state-space model, for instance).
        """
        missing = [
            n for n in ("num_attention_heads", "num_hidden_layers", "hidden_size") if not hasattr(config, n)
        ]
        if missing:
            raise ValueError(
                f"{type(config).__name__} has no {missing[0]}: it does not describe a model with attention"
            )
        num_heads = config.num_attention_heads
        return cls(
            name=getattr(config, "_name_or_path", "") or getattr(config, "model_type", "model"),
            num_layers=config.num_hidden_layers,
            num_heads=num_heads,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
            dtype=dtype,
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token leaves behind, over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * BYTES_PER_NUMBER[self.dtype]

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of one block of `block_size` tokens, over all layers."""
        return self.kv_bytes_per_token * block_size


MODELS = {
    "smollm2-135m": ModelShape("smollm2-135m", 30, 9, 3, 64),
    "llama-2-7b": ModelShape("llama-2-7b", 32, 32, 32, 128, "float16"),
    "llama-2-13b": ModelShape("llama-2-13b", 40, 40, 40, 128, "float16"),
    "llama-2-70b": ModelShape("llama-2-70b", 80, 64, 8, 128, "float16"),
    "llama-3.1-8b": ModelShape("llama-3.1-8b", 32, 32, 8, 128),
    "llama-3.1-70b": ModelShape("llama-3.1-70b", 80, 64, 8, 128),
    "mistral-7b": ModelShape("mistral-7b", 32, 32, 8, 128),
    "opt-13b": ModelShape("opt-13b", 40, 40, 40, 128, "float16"),
}


def human_bytes(num_bytes: float) -> str:
    """A size for people, in decimal units: 983040 -> '983 kB'."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            value = num_bytes / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{num_bytes:.0f} B"
