"""The size of a KV cache and how much of it is wasted: the arithmetic of chapter 1, without loading a model.

In every layer, a token stores one key and one value vector of `head_dim` elements for each KV head:

    bytes per token = 2 (K and V) * num_layers * num_kv_heads * head_dim * bytes per element

The formula covers MHA (a KV head for each query head), GQA (a KV head for each group of query heads) and MQA (one KV
head for all query heads). Two designs change the formula itself: MLA stores one *latent* vector of `latent_dim`
elements per layer in place of K and V, and a layer with a sliding window keeps only the last `sliding_window` tokens.

Units: all sizes are in bytes. 1 GB = 10^9 bytes and 1 GiB = 2^30 bytes; the text says which is meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BYTES_PER_NUMBER = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}


@dataclass(frozen=True)
class ModelShape:
    """The dimensions of a decoder that determine the size of its KV cache.

    Attributes:
        num_layers: layers that keep keys and values.
        num_heads: query heads. They do not change the cache's size.
        num_kv_heads: key/value heads: num_heads (MHA), fewer (GQA), or 1 (MQA).
        head_dim: elements in one head's key, and in one head's value.
        dtype: data type of an element: a key of `BYTES_PER_NUMBER`.
        latent_dim: elements that MLA stores per token and layer, in place of keys and values; 0: not an MLA model.
        sliding_window: window length in tokens; `num_window_layers` of the layers have this window.
        num_parameters: parameters of the whole model, for the size of its weights; 0: not known.
    """

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: str = "bfloat16"
    latent_dim: int = 0
    sliding_window: int = 0
    num_window_layers: int = 0
    num_parameters: int = 0

    def __post_init__(self) -> None:
        for field in ("num_layers", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, field) < 1:
                raise ValueError(f"{self.name}: {field} = {getattr(self, field)}: it must be 1 or more")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.name}: {self.num_heads} query heads cannot be divided evenly among "
                f"{self.num_kv_heads} KV heads"
            )
        if self.dtype not in BYTES_PER_NUMBER:
            raise ValueError(
                f"{self.name}: unknown dtype {self.dtype!r}: one of {', '.join(BYTES_PER_NUMBER)}"
            )
        if (
            not 0 <= self.num_window_layers <= self.num_layers
            or min(self.sliding_window, self.latent_dim) < 0
        ):
            raise ValueError(
                f"{self.name}: {self.num_window_layers} of {self.num_layers} layers with a window of "
                f"{self.sliding_window} tokens, latent_dim = {self.latent_dim}: none of these may be negative, and "
                "the layers with a window cannot outnumber all layers"
            )
        if bool(self.num_window_layers) != bool(self.sliding_window):
            raise ValueError(
                f"{self.name}: sliding_window = {self.sliding_window}, but {self.num_window_layers} layers have a "
                "window"
            )

    @classmethod
    def from_config(cls, config: Any, dtype: str = "bfloat16") -> ModelShape:
        """Read the shape from a transformers config (or anything with the same attribute names).

        Raises:
            ValueError: the config describes no attention layers (a state-space model, for instance).
        """
        missing = [
            n for n in ("num_attention_heads", "num_hidden_layers", "hidden_size") if not hasattr(config, n)
        ]
        if missing:
            raise ValueError(
                f"{type(config).__name__} has no {missing[0]}: it does not describe a model with attention"
            )
        num_heads = config.num_attention_heads
        num_layers = config.num_hidden_layers
        num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
        if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
            num_kv_heads = 1  # Falcon 7B marks MQA this way
        window = getattr(config, "sliding_window", None) or 0
        layer_types = getattr(config, "layer_types", None) or ["sliding_attention"] * num_layers
        num_window_layers = list(layer_types).count("sliding_attention") if window else 0
        latent = getattr(config, "kv_lora_rank", None) or 0
        return cls(
            name=getattr(config, "_name_or_path", "") or getattr(config, "model_type", "model"),
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
            dtype=dtype,
            latent_dim=latent + config.qk_rope_head_dim if latent else 0,
            sliding_window=window if num_window_layers else 0,
            num_window_layers=num_window_layers,
        )

    @property
    def kind(self) -> str:
        """The kind of attention: MHA, GQA, MQA or MLA, followed by "+ window" if any layer has a sliding window."""
        if self.latent_dim:
            kind = "MLA"
        elif self.num_kv_heads == self.num_heads:
            kind = "MHA"
        else:
            kind = "MQA" if self.num_kv_heads == 1 else "GQA"
        return f"{kind} + window" if self.num_window_layers else kind

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes, over all layers (in a layer with a window: until it has left the window)."""
        numbers = self.latent_dim or 2 * self.num_kv_heads * self.head_dim
        return self.num_layers * numbers * BYTES_PER_NUMBER[self.dtype]

    def kv_bytes_per_block(self, block_size: int) -> int:
        """Bytes of one block of `block_size` tokens, over all layers."""
        return self.kv_bytes_per_token * block_size

    def kv_bytes(self, num_tokens: int) -> int:
        """Bytes that a sequence of `num_tokens` needs. Tokens that have left a layer's window are not counted there."""
        per_layer = self.kv_bytes_per_token // self.num_layers
        in_window = min(num_tokens, self.sliding_window)
        full_layers = self.num_layers - self.num_window_layers
        return per_layer * (full_layers * num_tokens + self.num_window_layers * in_window)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, stored in the cache's dtype.

        Raises:
            ValueError: the number of parameters is not known.
        """
        if not self.num_parameters:
            raise ValueError(
                f"{self.name}: num_parameters is not known, so the size of the weights is not known either"
            )
        return self.num_parameters * BYTES_PER_NUMBER[self.dtype]


@dataclass(frozen=True)
class Usage:
    """Slots by state (PagedAttention paper, section 3.1). All but `used` are waste.

    Attributes:
        used: slots that hold a token.
        reserved: slots reserved for a token that will come: wasted until it does.
        internal: slots that a request holds and will never use.
        external: slots lost between requests: free, but in holes too small for a waiting request, or lost to rounding.
    """

    used: float
    reserved: float
    internal: float
    external: float = 0

    @property
    def total(self) -> float:
        """All slots."""
        return self.used + self.reserved + self.internal + self.external

    def shares(self) -> dict[str, float]:
        """The four parts as fractions of the total, by name."""
        names = ("used", "reserved", "internal", "external")
        return {name: getattr(self, name) / self.total for name in names}

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.used + other.used,
            self.reserved + other.reserved,
            self.internal + other.internal,
            self.external + other.external,
        )

    def __mul__(self, factor: float) -> Usage:
        return Usage(
            self.used * factor, self.reserved * factor, self.internal * factor, self.external * factor
        )


def split_reservation(num_tokens: int, final_tokens: int, num_slots: int) -> Usage:
    """Split the slots that one request holds by state; works for a contiguous reservation and for a list of blocks.

    Args:
        num_tokens: tokens the request has now.
        final_tokens: tokens the request will have when it ends. This may exceed `num_slots`: a paged request takes
            more blocks later.
        num_slots: slots the request holds now.

    Raises:
        ValueError: more tokens than slots, or more tokens now than at the end.
    """
    if not 0 <= num_tokens <= min(final_tokens, num_slots):
        raise ValueError(
            f"{num_tokens} tokens now, {final_tokens} at the end, in {num_slots} slots: a token needs a slot, and no "
            "slot is freed before the request ends"
        )
    promised = min(final_tokens, num_slots)
    return Usage(used=num_tokens, reserved=promised - num_tokens, internal=num_slots - promised)


def kv_budget(
    memory_bytes: float, weight_bytes: float, memory_fraction: float = 0.9, activation_bytes: float = 0.0
) -> float:
    """Return the bytes left for keys and values on all devices together.

    Raises:
        ValueError: `memory_fraction` is not a fraction.
        MemoryError: nothing is left.
    """
    if not 0 < memory_fraction <= 1:
        raise ValueError(f"memory_fraction = {memory_fraction}: it must be a fraction, above 0 and at most 1")
    room = memory_fraction * memory_bytes - weight_bytes - activation_bytes
    if room <= 0:
        raise MemoryError(
            f"{memory_fraction:.0%} of {human_bytes(memory_bytes)} do not hold {human_bytes(weight_bytes)} of weights "
            f"and {human_bytes(activation_bytes)} of activations: use more or larger devices, or a smaller dtype"
        )
    return room


def contiguous_capacity(budget: float, shape: ModelShape, max_tokens: int) -> int:
    """Return how many requests fit at once if each reserves `max_tokens` contiguous slots."""
    return int(budget // shape.kv_bytes(max_tokens))


def paged_capacity(budget: float, shape: ModelShape, num_tokens: int, block_size: int = 16) -> int:
    """Return how many requests of `num_tokens` fit at once in blocks. Budget and requests are rounded to whole blocks.

    Blocks behind a sliding window are counted too: our pool does not free them before the request ends.
    """
    num_blocks = int(budget // shape.kv_bytes_per_block(block_size))
    return num_blocks // blocks_for(num_tokens, block_size)


_M = ModelShape
MODELS = {
    shape.name: shape
    for shape in (
        _M("smollm2-135m", 30, 9, 3, 64, num_parameters=134_515_008),
        _M("llama-2-7b", 32, 32, 32, 128, "float16", num_parameters=6_738_415_616),
        _M("llama-2-13b", 40, 40, 40, 128, "float16", num_parameters=13_015_864_320),
        _M("llama-2-70b", 80, 64, 8, 128, "float16", num_parameters=68_976_648_192),
        _M("llama-3.1-8b", 32, 32, 8, 128, num_parameters=8_030_261_248),
        _M("llama-3.1-70b", 80, 64, 8, 128, num_parameters=70_553_706_496),
        _M("llama-3.1-405b", 126, 128, 8, 128, num_parameters=405_853_388_800),
        _M("mistral-7b", 32, 32, 8, 128, num_parameters=7_241_732_096),
        _M("opt-13b", 40, 40, 40, 128, "float16", num_parameters=12_853_473_280),
        _M("falcon-7b", 32, 71, 1, 64, num_parameters=6_921_720_704),
        # Layers 6, 12, … of 62 attend to all tokens, the others to the last 1,024.
        _M("gemma-3-27b", 62, 32, 16, 128, sliding_window=1024, num_window_layers=52, num_parameters=27_009_346_304),
        # A latent of 512 elements and a rotary key of 64.
        _M("deepseek-v3", 61, 128, 128, 128, latent_dim=512 + 64),
    )
}  # fmt: skip


def human_bytes(num_bytes: float) -> str:
    """Return a size in readable decimal units: 983040 -> '983 kB'."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            value = num_bytes / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{num_bytes:.0f} B"


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Return how many blocks hold `num_tokens` tokens: the quotient, rounded up."""
    return -(-num_tokens // block_size)
