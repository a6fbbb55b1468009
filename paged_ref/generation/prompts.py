"""The accepted forms of a prompt, and their conversion to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, str]]


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Return one prompt, or several, as a list. [] means no prompts; one empty prompt is [[]] or [""]."""
    _require_kind(prompts)
    if isinstance(prompts, str) or (len(prompts) and _is_token_or_message(prompts[0])):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def to_token_ids(prompt: Prompt, tokenizer: Any, vocab_size: int) -> list[int]:
    """Return the token ids of a string, of chat messages (by the tokenizer's chat template), or of a list of ids.

    The tokenizer puts its start-of-sequence token before a string, unless the string begins with it (a rendered chat
    template).

    Raises:
        ValueError: no tokens, an id outside the vocabulary, text without a tokenizer, or not a prompt at all.
    """
    _require_kind(prompt)
    if isinstance(prompt, str):
        try:
            token_ids = _without_second_start(
                prompt, _require(tokenizer, "a string")(prompt).input_ids, tokenizer
            )
        except (UnicodeError, TypeError) as error:  # half of a surrogate pair
            raise ValueError(f"the prompt is not text that can be encoded: {error}") from error
    elif len(prompt) and isinstance(prompt[0], Mapping):
        token_ids = _from_messages(prompt, tokenizer)  # type: ignore[arg-type]
    else:
        token_ids = list(prompt)  # type: ignore[arg-type]
    if not len(token_ids):
        raise ValueError("the prompt is empty: the model needs at least one token to continue")
    for i, token in enumerate(token_ids):
        if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
            raise ValueError(
                f"token {i} of the prompt is {token!r}: a prompt is a string, token ids, or chat messages"
            )
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"token {i} of the prompt is {token}: the vocabulary has ids 0 to {vocab_size - 1}"
            )
    return [int(token) for token in token_ids]


def _without_second_start(text: str, token_ids: list[int], tokenizer: Any) -> list[int]:
    """Return the ids without the start token that the tokenizer put before text that begins with one already.

    A chat template rendered to a string begins with the start-of-sequence token, and most tokenizers add another.
    """
    start, start_id = getattr(tokenizer, "bos_token", None), getattr(tokenizer, "bos_token_id", None)
    if start and text.startswith(start) and list(token_ids[:2]) == [start_id, start_id]:
        return token_ids[1:]
    return token_ids


def _from_messages(messages: Sequence[Mapping[str, str]], tokenizer: Any) -> list[int]:
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise ValueError(f"chat message {i} is {message!r}: it needs a 'role' and a 'content'")
        for name in ("role", "content"):
            if not isinstance(message[name], str):
                raise ValueError(
                    f"chat message {i}: its {name!r} is {message[name]!r:.60}, but must be a string"
                )
    if getattr(_require(tokenizer, "chat messages"), "chat_template", None) is None:
        raise ValueError("the tokenizer has no chat template: give the prompt as a string")
    try:
        made = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=True)
    except Exception as error:  # a template is code by the model's authors, and may raise any exception
        raise ValueError(f"the tokenizer's chat template rejected these messages: {error}") from error
    return list(made["input_ids"])


def _require(tokenizer: Any, what: str) -> Any:
    if tokenizer is None:
        raise ValueError(f"the prompt is {what}, but the model came without a tokenizer: give token ids")
    return tokenizer


def _require_kind(prompt: Any) -> None:
    is_list = isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray))
    if not (is_list or (isinstance(prompt, np.ndarray) and prompt.ndim > 0)):
        kind = type(prompt).__name__
        raise ValueError(
            f"a prompt is a string, a list of token ids, or a list of chat messages, not a {kind}: {prompt!r:.60}"
        )


def _is_token_or_message(item: Any) -> bool:
    return isinstance(item, (int, np.integer, Mapping))
