"""Capacity planning: how many requests a machine serves at once, and what a request costs (chapter 1).

The memory determines how many requests fit, `CostModel` how long a step with that many requests takes, and a price per
hour what a request costs. The second step matters: ten times the requests do not give ten times the throughput. A
larger batch is nearly free while reading the weights dominates a step, and costs its full time once arithmetic or
reading keys and values takes longer (chapter 5 draws this roofline).

The plan assumes a server in its steady state: in each step every running request gets one token, and as many prompts
are prefilled as requests end. Use the cost for comparisons only; a real bill includes off-peak hours and networking.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..sizing import ModelShape, Usage, contiguous_capacity, kv_budget, paged_capacity, split_reservation
from .cost_model import A100, H100, CostModel, Device

# From the data sheets: dense FLOP/s at 16 bits, bytes/s, bytes (a GPU sold as "80 GB" is assumed to have 80e9), and
# PCIe bytes/s in one direction, as reached in practice.
DEVICES = {
    "l4": Device("L4 24 GB", flops=121e12, bandwidth=0.3e12, memory=24e9, pcie=25e9),
    "rtx-4090": Device("RTX 4090 24 GB", flops=165e12, bandwidth=1.008e12, memory=24e9, pcie=25e9),
    "a100-40gb": A100,
    "l40s": Device("L40S 48 GB", flops=362e12, bandwidth=0.864e12, memory=48e9, pcie=25e9),
    "a100-80gb": Device("A100 80 GB", flops=312e12, bandwidth=2.039e12, memory=80e9, pcie=25e9),
    "h100-80gb": H100,
    "h200": Device("H200 141 GB", flops=989e12, bandwidth=4.8e12, memory=141e9, pcie=50e9),
}


@dataclass(frozen=True)
class Load:
    """The load: the lengths, in tokens, that every request has.

    Raises:
        ValueError: a length below 1, or a request longer than `max_tokens`.
    """

    prompt_tokens: int
    output_tokens: int
    max_tokens: int

    def __post_init__(self) -> None:
        if min(self.prompt_tokens, self.output_tokens) < 1 or self.num_tokens > self.max_tokens:
            raise ValueError(
                f"{self.prompt_tokens} prompt tokens and {self.output_tokens} output tokens, at most "
                f"{self.max_tokens} in all: each must be 1 or more, and their sum must not exceed the maximum"
            )

    @property
    def num_tokens(self) -> int:
        """Tokens of a request when it ends."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class Capacity:
    """The capacity of one way to organise the cache.

    Attributes:
        concurrency: requests at once.
        usage: slots of one request when it ends, by state.
        bytes_per_request: bytes that a request holds when it ends.
        requests_per_second: completed requests per second.
    """

    concurrency: int
    usage: Usage
    bytes_per_request: int
    requests_per_second: float

    def cost(self, price_per_hour: float) -> float:
        """Return the cost of one request, given the price per hour of the whole machine, in the same currency."""
        return price_per_hour / 3600 / self.requests_per_second


@dataclass(frozen=True)
class CapacityPlan:
    """A model on a machine under a load: reservations of the maximum length compared with blocks on demand."""

    cost_model: CostModel
    load: Load
    budget: float
    contiguous: Capacity
    paged: Capacity


def plan_capacity(
    shape: ModelShape,
    device: Device,
    load: Load,
    num_devices: int = 1,
    block_size: int = 16,
    memory_fraction: float = 0.9,
) -> CapacityPlan:
    """Return the capacity plan of a model on a machine.

    Raises:
        MemoryError: the weights do not fit, or no request fits beside them.
        ValueError: an argument out of its range, or the model's number of parameters is not known.
    """
    for name, value in (("num_devices", num_devices), ("block_size", block_size)):
        if value < 1:
            raise ValueError(f"{name} = {value}: it must be 1 or more")
    budget = kv_budget(device.memory * num_devices, shape.weight_bytes, memory_fraction)
    cost = CostModel(shape, shape.num_parameters, device, num_devices, memory_fraction=memory_fraction)
    paged = paged_capacity(budget, shape, load.num_tokens, block_size)
    held = -(-load.num_tokens // block_size) * block_size
    return CapacityPlan(
        cost,
        load,
        budget,
        _serving(cost, load, contiguous_capacity(budget, shape, load.max_tokens), load.max_tokens),
        _serving(cost, load, paged, held),
    )


def _serving(cost: CostModel, load: Load, concurrency: int, slots: int) -> Capacity:
    if concurrency < 1:
        raise MemoryError(
            f"no request of {slots} slots fits beside the weights of {cost.shape.name} on "
            f"{cost.num_devices} x {cost.device.name}"
        )
    usage = split_reservation(load.num_tokens, load.num_tokens, slots)
    seconds = load.output_tokens * steady_step_seconds(cost, load, concurrency)
    return Capacity(concurrency, usage, cost.shape.kv_bytes(slots), concurrency / seconds)


def steady_step_seconds(cost: CostModel, load: Load, concurrency: int) -> float:
    """Return the seconds of a step in which `concurrency` requests decode and as many prompts start as requests end."""
    prompts = concurrency / load.output_tokens
    context = load.prompt_tokens + load.output_tokens / 2  # of a request halfway through its output
    prompt_pairs = load.prompt_tokens * (load.prompt_tokens + 1) / 2
    return cost.seconds(
        round(concurrency + prompts * load.prompt_tokens),
        round(concurrency * context + prompts * load.prompt_tokens),
        round(concurrency * context + prompts * prompt_pairs),
    )
