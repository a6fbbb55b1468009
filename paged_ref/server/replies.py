"""The JSON of OpenAI's replies, whole and as a stream of chunks."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from .engine_thread import End, Job, Token
from .errors import ApiError


class Reply:
    """Collects the tokens of a call's jobs and forms the reply.

    Args:
        jobs: one per prompt, in order. Choice `i * n + k` is sample k of prompt i.
        n: samples per prompt.
        chat: form a chat completion.
        model: the model's name.
    """

    def __init__(self, jobs: list[Job], n: int, chat: bool, model: str) -> None:
        self.jobs, self.n, self.chat = jobs, n, chat
        self.texts = [""] * (len(jobs) * n)
        self.reasons: list[str | None] = [None] * len(self.texts)
        self.generated = 0
        self.head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12),
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    async def news(self, i: int) -> tuple[dict[int, str], bool]:
        """Wait for news of job `i`: returns the new text of each choice, and True once the job has ended.

        Raises:
            ApiError: the job ended with an error.
        """
        texts: dict[int, str] = {}
        for item in await self.jobs[i].take():
            if isinstance(item, End):
                if item.error is not None:
                    raise item.error
                return texts, True
            self._count(i, item, texts)
        return texts, False

    def _count(self, i: int, token: Token, texts: dict[int, str]) -> None:
        choice = i * self.n + token.sample
        self.generated += 1
        self.texts[choice] += token.text
        self.reasons[choice] = token.finish_reason
        texts[choice] = texts.get(choice, "") + token.text

    async def whole(self) -> dict[str, Any]:
        """Wait for all jobs and return the reply."""
        for i in range(len(self.jobs)):
            while not (await self.news(i))[1]:
                pass
        choices = [
            self._choice(
                k, {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
            )
            for k, text in enumerate(self.texts)
        ]
        return {**self.head, "choices": choices, "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Return the token counts; a prompt is counted once, whatever n is."""
        prompt = sum(len(job.token_ids) for job in self.jobs)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.generated,
            "total_tokens": prompt + self.generated,
        }

    def _choice(self, k: int, content: dict[str, Any]) -> dict[str, Any]:
        return {"index": k, **content, "logprobs": None, "finish_reason": self.reasons[k]}

    def chunk(self, k: int, text: str, first: bool) -> bytes:
        """Return a server-sent event with new text of choice `k`."""
        content: dict[str, Any] = {"text": text}
        if self.chat:
            content = {"delta": ({"role": "assistant"} if first else {}) | {"content": text}}
        return self._event([self._choice(k, content)])

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        head = self.head | ({"object": "chat.completion.chunk"} if self.chat else {})
        return event({**head, "choices": choices, **more})

    async def stream(
        self, first: tuple[dict[int, str], bool], with_usage: bool, merge: Callable[[], AsyncIterator[Any]]
    ) -> AsyncIterator[bytes]:
        """Yield the reply's events. `first` is the first news of job 0; `merge` yields all later news."""
        begun: set[int] = set()

        def chunks(texts: dict[int, str]) -> list[bytes]:
            made = []
            for k, text in texts.items():
                if text or self.reasons[k]:
                    made.append(self.chunk(k, text, k not in begun))
                    begun.add(k)
            return made

        try:
            for chunk in chunks(first[0]):
                yield chunk
            async for texts in merge():
                for chunk in chunks(texts):
                    yield chunk
        except ApiError as error:  # the status has been sent: only the stream can carry the error
            yield event(error.body())
            return
        if with_usage:
            yield self._event([], usage=self.usage())
        yield b"data: [DONE]\n\n"


def event(body: dict[str, Any]) -> bytes:
    """Return a JSON object as a server-sent event."""
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"
