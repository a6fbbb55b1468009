"""The bodies of `/v1/completions` and `/v1/chat/completions`, checked and turned into prompts and `SamplingParams`.

A field that would change the reply and that the engine does not have is refused by name, unless it has its neutral
value. Other unknown fields are ignored, as OpenAI's clients add new ones. The names are those of OpenAI's API;
`top_k`, `ignore_eos` and `cache_salt` are vLLM's additions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from ..generation.prompts import Prompt, as_prompts
from ..sampling.params import SamplingParams
from .errors import ApiError

DEFAULT_TOKENS = {
    "completion": 16,
    "chat": 256,
}  # OpenAI's default for completions; chat's is the model's limit
MOST_STOPS = 4
# Field → the values that ask for nothing.
REFUSED: dict[str, tuple[Any, ...]] = {
    "echo": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "suffix": ("",),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "tools": ([],),
    "functions": ([],),
    "response_format": ({"type": "text"},),
}
PASSED_ON = ("temperature", "top_p", "top_k", "n", "seed", "ignore_eos", "cache_salt")


@dataclass(frozen=True)
class Call:
    """A checked request body.

    Attributes:
        prompts: each becomes one request of the engine.
        sampling: the same for all prompts.
        stream: send tokens as they are generated.
        with_usage: end a stream with a chunk that holds the token counts.
    """

    prompts: list[Prompt]
    sampling: SamplingParams
    stream: bool
    with_usage: bool


def parse(raw: bytes, chat: bool, model: str) -> Call:
    """Return the call that a request body describes.

    Raises:
        ApiError: 400 for an invalid body, 404 for a model that is not served; the message names the field.
    """
    body = json_object(raw)
    wanted = body.get("model", model)
    if wanted != model:
        raise ApiError(
            404,
            f"model {wanted!r:.80} is not served here; this server has {model!r}",
            "model",
            "model_not_found",
        )
    for name, neutral in REFUSED.items():
        value = body.get(name)
        if value is not None and not any(value == v and type(value) in (type(v), float) for v in neutral):
            raise ApiError(400, f"{name} is not supported: leave it out", name, "unsupported_parameter")
    if body.get("best_of") not in (None, body.get("n", 1)):
        raise ApiError(400, "best_of is not supported: leave it out", "best_of", "unsupported_parameter")
    stream, with_usage = _stream(body)
    return Call(_messages(body) if chat else _prompts(body), _sampling(body, chat), stream, with_usage)


def json_object(raw: bytes) -> dict[str, Any]:
    """Return a body's JSON object; raise `ApiError` 400 if it is anything else."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        body = json.loads(raw, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}"[:200], code="invalid_json") from error
    if not isinstance(body, dict):
        raise ApiError(400, f"the body must be a JSON object, not {type(body).__name__}", code="invalid_json")
    return body


def _stream(body: dict[str, Any]) -> tuple[bool, bool]:
    stream, options = body.get("stream"), body.get("stream_options")
    if stream not in (None, True, False) or (
        isinstance(stream, (int, float)) and not isinstance(stream, bool)
    ):
        raise ApiError(400, f"stream = {stream!r:.60}: it must be true or false", "stream")
    if options is None:
        return bool(stream), False
    if not stream or not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object, and needs stream to be true", "stream_options")
    return True, options.get("include_usage") is True


def _prompts(body: dict[str, Any]) -> list[Prompt]:
    prompt = body.get("prompt")
    if not isinstance(prompt, (str, list)) or not prompt:
        raise ApiError(
            400,
            "prompt must be a string, a list of strings, token ids, or lists of token ids, and not empty",
            "prompt",
        )
    prompts = as_prompts(prompt)
    for i, one in enumerate(prompts):
        kinds = {type(token) for token in one} if isinstance(one, list) else set()
        if not isinstance(one, str) and kinds != {int}:
            raise ApiError(
                400, f"prompt {i} must be a string or a list of token ids, and not empty", "prompt"
            )
    return prompts


def _messages(body: dict[str, Any]) -> list[Prompt]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list of at least one message", "messages")
    plain = []
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ApiError(
                400, f"messages[{i}] must be an object with a role and a content", f"messages[{i}]"
            )
        plain.append({"role": message["role"], "content": _content(message.get("content"), i)})
    return [plain]


def _content(content: Any, i: int) -> str:
    """Return a message's text; OpenAI's clients may send it as a list of parts."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise ApiError(400, f"messages[{i}].content must be text", f"messages[{i}].content")
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ApiError(
                400,
                f"messages[{i}].content may have text parts only: the model reads text",
                f"messages[{i}].content",
            )
    return "".join(part["text"] for part in parts)


def _sampling(body: dict[str, Any], chat: bool) -> SamplingParams:
    given = {name: body[name] for name in PASSED_ON if body.get(name) is not None}
    # Clients send whole numbers as 1.0, too; booleans are no numbers.
    for name, value in given.items():
        if name not in ("ignore_eos", "cache_salt") and (
            isinstance(value, bool) or not isinstance(value, (int, float))
        ):
            raise ApiError(400, f"{name} = {value!r:.60}: it must be a number", name)
    if not isinstance(given.get("ignore_eos", False), bool):
        raise ApiError(400, "ignore_eos must be true or false", "ignore_eos")
    stop = body.get("stop") or ()
    if not isinstance(stop, (str, list, tuple)) or (not isinstance(stop, str) and len(stop) > MOST_STOPS):
        raise ApiError(400, f"stop must be a string or a list of up to {MOST_STOPS} strings", "stop")
    limit = body.get("max_completion_tokens") if chat else None
    limit = body.get("max_tokens") if limit is None else limit
    try:
        return SamplingParams(
            **{"temperature": 1.0} | given,
            max_tokens=DEFAULT_TOKENS["chat" if chat else "completion"] if limit is None else limit,
            stop=stop,
        )
    except (ValueError, TypeError) as error:
        name = str(error).split(" ")[0]
        raise ApiError(
            400, str(error), name if name in {*PASSED_ON, "max_tokens", "stop"} else None
        ) from error
