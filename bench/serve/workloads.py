"""The servers' workloads: prompts, and the number of new tokens for each (chapter 7).

All requests of a workload arrive at the beginning, and at most `seqs_at_once` run together on every server. No sequence
stops early: the lengths are fixed, so that all servers generate the same number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

TOPICS = (
    "why the sky is blue",
    "how a compiler allocates registers",
    "what a hash table costs",
    "how bees find their way home",
    "the difference between a process and a thread",
    "how vaccines work",
    "why bridges need expansion joints",
    "how a bicycle stays upright",
    "what makes bread rise",
    "how the tides follow the moon",
    "what a checksum is good for",
    "how a violin makes its sound",
    "why leaves change colour",
    "how an index makes a query fast",
    "what a semaphore does",
    "how noise-cancelling headphones work",
)
READERS = (
    "a child of ten",
    "a new colleague",
    "someone who reads only one paragraph",
    "an examiner",
)
CONTEXT = (
    "Begin with an example from daily life.",
    "Do not use any formula.",
    "Say which part is still disputed.",
    "Name one common misunderstanding and correct it.",
    "Keep every sentence short.",
    "End with a question for the reader.",
    "Explain each technical word where it first appears.",
    "Compare it with something that the reader knows well.",
    "Mention who found it out, and how.",
    "Leave out everything that is not needed to follow the main thought.",
)


@dataclass(frozen=True)
class Workload:
    """Requests that arrive together.

    Attributes:
        prompts: token ids.
        new_tokens: exact number of new tokens of each request.
        num_samples: continuations of each prompt. Several are sampled at temperature 1; a single one is greedy.
        seqs_at_once: most sequences that run at once.
    """

    name: str
    title: str
    prompts: list[list[int]]
    new_tokens: list[int]
    num_samples: int = 1
    seqs_at_once: int = 16

    @property
    def total_new_tokens(self) -> int:
        """The number of tokens that a server has to generate."""
        return self.num_samples * sum(self.new_tokens)

    @property
    def longest(self) -> int:
        """The number of tokens of the longest sequence when it ends."""
        return max(len(p) + n for p, n in zip(self.prompts, self.new_tokens, strict=True))

    @property
    def most_slots(self) -> int:
        """The slots, in blocks of 256 tokens, that hold all sequences at once: enough for any server."""
        lengths = [len(p) + n for p, n in zip(self.prompts, self.new_tokens, strict=True)]
        return self.num_samples * sum(-(-length // 256) * 256 for length in lengths)


def make_workloads(tokenizer: Any, quick: bool = False) -> dict[str, Workload]:
    """Return the four workloads by name; with `quick`, with a quarter of the requests and of the new tokens."""
    few, short = (4, 16) if quick else (16, 64)
    rng = np.random.default_rng(0)
    chats = [_chat(tokenizer, i, rng) for i in range(2 * few)]
    spread = np.clip(np.rint(rng.lognormal(np.log(40), 0.95, 2 * few)), 8, 4 * short).astype(int)
    spread[0] = 4 * short  # one long request, whatever was drawn
    system = _system_prompt(tokenizer, 512)
    found = [
        Workload("uniform", f"{few} prompts, {short} new tokens each", chats[:few], [short] * few),
        Workload(
            "skewed",
            f"{2 * few} prompts, {spread.min()} to {spread.max()} new tokens",
            chats,
            [int(n) for n in spread],
        ),
        Workload(
            "shared prefix",
            f"{few} prompts after one system prompt of {len(system)} tokens, {short // 2} new tokens each",
            [system + chat for chat in chats[:few]],
            [short // 2] * few,
        ),
        Workload(
            "samples",
            f"{few // 4} prompts, 4 samples of {short} tokens each",
            chats[: few // 4],
            [short] * (few // 4),
            num_samples=4,
        ),
    ]
    return {workload.name: workload for workload in found}


def _chat(tokenizer: Any, i: int, rng: np.random.Generator) -> list[int]:
    """Return a chat prompt of about 45 to 180 tokens; no two are equal."""
    context = rng.permutation(CONTEXT)[: rng.integers(0, len(CONTEXT) + 1)]
    reader = READERS[i // len(TOPICS) % len(READERS)]
    text = f"Explain {TOPICS[i % len(TOPICS)]} to {reader}. {' '.join(context)}"
    return _apply(tokenizer, [{"role": "user", "content": text}])


def _system_prompt(tokenizer: Any, num_tokens: int) -> list[int]:
    rules = [f"Rule {i + 1}: {CONTEXT[i % len(CONTEXT)]}" for i in range(num_tokens)]
    return _apply(tokenizer, [{"role": "system", "content": " ".join(rules)}])[:num_tokens]


def _apply(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return ids
