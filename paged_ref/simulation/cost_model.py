"""A cost model: the time of a step on a device, estimated without running a model (chapters 1 and 6).

A step multiplies every weight with every token (2 FLOP each), and reads every weight and the keys and values of every
context once. Whichever takes longer determines the time (the roofline):

    seconds = overhead + max(FLOP / peak FLOP/s, bytes / peak bytes/s) / efficiency  +  swapped bytes / PCIe bytes/s

So a prefill of thousands of tokens is bound by arithmetic, and a decode of a few dozen sequences by bandwidth. Most
bytes of a decode are weights, which all sequences of the batch share: that is why a larger batch is nearly free until
its keys and values take as many bytes as the weights. The model ignores communication between GPUs, which grows with
their number, and the effect of tensor shapes on kernels. Use it to compare policies, not to buy hardware.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..scheduling.step import Step
from ..sizing import BYTES_PER_NUMBER, MODELS, ModelShape


@dataclass(frozen=True)
class Device:
    """One accelerator, from its data sheet: dense FLOP/s at 16 bits, memory bytes/s, bytes, and PCIe bytes/s."""

    name: str
    flops: float
    bandwidth: float
    memory: float
    pcie: float


A100 = Device("A100 40 GB", flops=312e12, bandwidth=1.555e12, memory=40e9, pcie=25e9)
H100 = Device("H100 80 GB", flops=989e12, bandwidth=3.35e12, memory=80e9, pcie=50e9)


@dataclass(frozen=True)
class CostModel:
    """A model on devices that share its work evenly (tensor parallelism).

    Attributes:
        num_parameters: parameters of the whole model.
        compute_efficiency, bandwidth_efficiency: fraction of the peak that kernels reach.
        overhead: seconds per step outside of kernels: launches, scheduling, sampling.
        memory_fraction: fraction of the devices' memory for weights, activations and cache.
        activations: bytes for activations, on all devices together.
    """

    shape: ModelShape
    num_parameters: float
    device: Device
    num_devices: int = 1
    compute_efficiency: float = 0.5
    bandwidth_efficiency: float = 0.75
    overhead: float = 2e-3
    memory_fraction: float = 0.9
    activations: float = 0.0

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights."""
        return self.num_parameters * BYTES_PER_NUMBER[self.shape.dtype]

    def num_blocks(self, block_size: int) -> int:
        """Return the number of blocks that fit beside weights and activations.

        Raises:
            MemoryError: no block fits.
        """
        room = (
            self.memory_fraction * self.device.memory * self.num_devices
            - self.weight_bytes
            - self.activations
        )
        blocks = int(room // self.shape.kv_bytes_per_block(block_size))
        if blocks < 1:
            raise MemoryError(f"{self.shape.name} does not fit on {self.num_devices} x {self.device.name}")
        return blocks

    def step_seconds(self, step: Step, block_size: int) -> float:
        """Return the seconds that the forward pass and the swaps of a step take."""
        num_tokens = context = pairs = 0
        for _, _, start, stop in step.chunks:
            num_tokens += stop - start
            context += stop
            pairs += (stop - start) * (start + stop + 1) // 2
        swapped = len(step.swaps_in) + len(step.swaps_out)
        return self.seconds(num_tokens, context, pairs) + self.swap_seconds(swapped, block_size)

    def seconds(self, num_tokens: int, context: int, pairs: int) -> float:
        """Return the seconds of a forward pass over so many tokens, context tokens, and (query, visible key) pairs."""
        if num_tokens == 0:
            return 0.0
        per_token, per_pair, weights, per_context = self._rates
        return self.overhead + max(per_token * num_tokens + per_pair * pairs, weights + per_context * context)

    @cached_property
    def _rates(self) -> tuple[float, float, float, float]:
        """Seconds of arithmetic per token and per pair, and of reading all weights and one token's keys and values."""
        shape = self.shape
        flops = self.device.flops * self.num_devices * self.compute_efficiency
        bandwidth = self.device.bandwidth * self.num_devices * self.bandwidth_efficiency
        flop_per_pair = 4 * shape.num_layers * shape.num_heads * shape.head_dim
        return (
            2 * self.num_parameters / flops,
            flop_per_pair / flops,
            self.weight_bytes / bandwidth,
            shape.kv_bytes_per_token / bandwidth,
        )

    def swap_seconds(self, num_blocks: int, block_size: int) -> float:
        """Return the seconds to copy blocks to or from the host; each device copies its own part."""
        return num_blocks * self.shape.kv_bytes_per_block(block_size) / (self.device.pcie * self.num_devices)

    def recompute_seconds(self, num_tokens: int) -> float:
        """Return the seconds to prefill a preempted sequence again, in a step of its own."""
        return self.seconds(num_tokens, num_tokens, num_tokens * (num_tokens + 1) // 2)


SETUPS = {
    # The vLLM paper's first setup (its table 1): 26 GB of weights, 12 GB for keys and values, about 15,700 slots.
    "opt-13b-a100": CostModel(MODELS["opt-13b"], 13e9, A100, memory_fraction=0.95, activations=0.0),
    "llama-3.1-8b-h100": CostModel(MODELS["llama-3.1-8b"], 8.03e9, H100),
    # Chapter 1's example: 0.9 * 640 - 141 = 435 GB for keys and values.
    "llama-3.1-70b-8xh100": CostModel(MODELS["llama-3.1-70b"], 70.6e9, H100, num_devices=8),
}
