"""What the engine did, in numbers (chapter 6)."""

from __future__ import annotations

from dataclasses import dataclass

from .block_pool import BlockPool
from .scheduler import Step


@dataclass
class Metrics:
    """Counts since the engine started, kept by `observe` after each step.

    Attributes:
        steps: forward passes.
        computed_tokens: tokens that went through the model, prompts included.
        generated_tokens: tokens that were sampled.
        cached_tokens: prompt tokens that the prefix cache spared.
        preemptions: requests that lost their blocks while they ran.
        peak_used_blocks, peak_running: the most at the end of any step.
    """

    steps: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    peak_used_blocks: int = 0
    peak_running: int = 0

    def observe(self, step: Step, pool: BlockPool, num_running: int) -> None:
        """Count a scheduled step; call it before finished sequences free their blocks."""
        self.steps += bool(step.chunks)
        self.computed_tokens += step.num_tokens
        self.cached_tokens += step.cached_tokens
        self.preemptions += len(step.preempted)
        self.peak_used_blocks = max(self.peak_used_blocks, pool.num_used)
        self.peak_running = max(self.peak_running, num_running)
