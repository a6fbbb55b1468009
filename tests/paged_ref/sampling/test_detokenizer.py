"""Streamed text: for each kind of tokenizer it is what decoding all tokens at once gives, and it comes in time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paged_ref.sampling.detokenizer import Detokenizer

SPECIAL = ["<s>", "</s>", "<|end|>"]
WORDS = [
    "do",
    "n",
    "'",
    "t",
    "s",
    "m",
    "ve",
    "re",
    ".",
    ",",
    "?",
    "!",
    "it",
    "I",
    "hello",
    "n't",
    "'s",
    "'re",
]


def wrap(tokenizer: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", **options)


def byte_level_bpe(**options: Any) -> PreTrainedTokenizerFast:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(letters)}
    merges = [("h", "i"), ("Ġ", "."), ("Ġ", "n")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return wrap(tokenizer, **options)


def word_piece(**options: Any) -> PreTrainedTokenizerFast:
    pieces = ["[UNK]", *WORDS, *(f"##{word}" for word in WORDS)]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=options.pop("cleanup", True))
    return wrap(tokenizer, **options)


def unigram(**options: Any) -> PreTrainedTokenizerFast:
    pieces = ["<unk>", "▁", *(f"▁{word}" for word in WORDS), *WORDS, "é", "中"]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0, byte_fallback=True))
    if options.pop("metaspace", False):
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    else:
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    return wrap(tokenizer, **options)


def word_ends(**options: Any) -> PreTrainedTokenizerFast:
    pieces = [*WORDS, *(f"{word}</w>" for word in WORDS)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    tokenizer.decoder = decoders.BPEDecoder()
    return wrap(tokenizer, **options)


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "byte-level BPE": byte_level_bpe,
    "byte-level BPE, clean-up asked for": lambda: byte_level_bpe(clean_up_tokenization_spaces=True),
    "byte-level BPE, clean-up forced": lambda: byte_level_bpe(
        clean_up_tokenization_spaces=True,
        clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output=True,
    ),
    "WordPiece": word_piece,
    "WordPiece, clean-up": lambda: word_piece(clean_up_tokenization_spaces=True),
    "WordPiece, plain": lambda: word_piece(cleanup=False),
    "WordPiece, plain, clean-up": lambda: word_piece(cleanup=False, clean_up_tokenization_spaces=True),
    "Unigram with byte tokens": unigram,
    "Unigram with byte tokens, clean-up": lambda: unigram(clean_up_tokenization_spaces=True),
    "Unigram, Metaspace": lambda: unigram(metaspace=True),
    "BPE with word ends": word_ends,
}


def stream(tokenizer: Any, tokens: Sequence[int], stop: Sequence[str] = ()) -> list[str]:
    detokenizer = Detokenizer(tokenizer, stop)
    pieces = [detokenizer.add(token) for token in tokens]
    pieces.append(detokenizer.finish())
    assert "".join(pieces) == detokenizer.text
    return pieces


def ids(tokenizer: Any, *pieces: str) -> list[int]:
    found = tokenizer.convert_tokens_to_ids(list(pieces))
    assert None not in found
    return list(found)


def letters(data: bytes) -> list[str]:
    """The bytes as a byte-level vocabulary writes them."""
    table = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    everything = {table.pre_tokenize_str(chr(code))[0][0]: chr(code) for code in range(128)}
    back = {character: letter for letter, character in everything.items()}
    rest = {}
    for code in range(0x80, 0x800):
        for letter, byte in zip(table.pre_tokenize_str(chr(code))[0][0], chr(code).encode(), strict=True):
            rest[byte] = letter
    return [back[chr(byte)] if byte < 128 else rest.get(byte, "") for byte in data]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [(), ("no such text",)])
def test_streamed_text_is_the_decoded_text(kind: str, stop: tuple[str, ...], full: bool) -> None:
    tokenizer = KINDS[kind]()
    rng = random.Random(kind)
    for _ in range(2000 if full else 300):
        tokens = [rng.randrange(len(tokenizer)) for _ in range(rng.randrange(1, 12))]
        whole = tokenizer.decode(tokens, skip_special_tokens=True)
        assert "".join(stream(tokenizer, tokens, stop)) == whole, tokenizer.convert_ids_to_tokens(tokens)


@pytest.mark.parametrize("text", ["it ' s", "do n ' t !", "I ' m , hello .", "it ' ve n't ' re"])
def test_words_that_cleaning_up_joins(text: str) -> None:
    for cleanup in (False, True):
        tokenizer = word_piece(cleanup=cleanup, clean_up_tokenization_spaces=True)
        tokens = ids(tokenizer, *text.split())
        assert "".join(stream(tokenizer, tokens)) == tokenizer.decode(tokens)


def test_cleaned_up_text_does_not_wait_for_the_end() -> None:
    tokenizer = word_piece(clean_up_tokenization_spaces=True)
    pieces = stream(tokenizer, ids(tokenizer, "hello", "it", "'", "s", "I"))
    assert pieces == ["hello", " it", "", "'s", " I", ""]


def test_a_byte_that_is_wrong_is_given_out_when_the_next_one_comes() -> None:
    tokenizer = byte_level_bpe()
    bad = tokenizer.convert_tokens_to_ids(letters(b"\xc3")[0])
    assert stream(tokenizer, [bad] * 4) == ["", "\ufffd", "\ufffd", "\ufffd", "\ufffd"]
    assert stream(tokenizer, [bad, *ids(tokenizer, "h"), bad]) == ["", "\ufffdh", "", "\ufffd"]


def test_byte_tokens_are_given_out_when_the_run_ends_or_is_wrong_for_good() -> None:
    tokenizer = unigram()
    euro = ids(tokenizer, "<0xE2>", "<0x82>", "<0xAC>")
    word = ids(tokenizer, "▁it")
    assert stream(tokenizer, [*euro, *word]) == ["", "", "", "€ it", ""]
    assert stream(tokenizer, [*euro[:2], *word]) == ["", "", "\ufffd\ufffd it", ""]
    wrong = ids(tokenizer, "<0xFF>")
    assert stream(tokenizer, [*word, *wrong, *euro]) == ["it", *["\ufffd"] * 4, ""]


def test_certain_text_is_given_out_although_half_a_character_follows() -> None:
    class Pieces:
        """Token i reads as these bytes."""

        pieces = (b"one end\xe2", b"\x82", b"\xac two")

        def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
            return b"".join(self.pieces[token] for token in tokens).decode(errors="replace")

    assert stream(Pieces(), [0, 1, 2]) == ["one end", "", "€ two", ""]
    detokenizer = Detokenizer(Pieces(), ["end"])
    assert (detokenizer.add(0), detokenizer.stopped) == ("one ", True)


@pytest.mark.parametrize("kind", ["byte-level BPE", "WordPiece", "Unigram with byte tokens"])
@pytest.mark.parametrize("special", ["<|end|>", "</s>"])
def test_a_stop_string_may_be_a_special_token(kind: str, special: str) -> None:
    tokenizer = KINDS[kind]()
    word = {"byte-level BPE": "hi", "WordPiece": "hello", "Unigram with byte tokens": "▁hello"}[kind]
    tokens = ids(tokenizer, word, "<s>", special, word)
    detokenizer = Detokenizer(tokenizer, [special])
    text = "".join(detokenizer.add(token) for token in tokens[:3])
    assert (text, detokenizer.stopped) == (word.strip("▁"), True)
    assert (detokenizer.add(tokens[3]), detokenizer.finish()) == ("", "")


def test_a_stop_string_may_contain_a_special_token_and_cuts_before_its_visible_part() -> None:
    tokenizer = byte_level_bpe()
    tokens = ids(tokenizer, "h", "i", "<|end|>", "h", "h")
    for stop, text in (("i<|end|>", "h"), ("<|end|>hh", "hi"), ("nd|>h", "hi"), ("<|end|>x", "hihh")):
        detokenizer = Detokenizer(tokenizer, [stop])
        given = "".join(detokenizer.add(token) for token in tokens) + detokenizer.finish()
        assert (given, detokenizer.stopped) == (text, text != "hihh"), stop
        assert "<" not in detokenizer.text


def test_a_fork_holds_back_its_own_text() -> None:
    tokenizer = byte_level_bpe()
    first = Detokenizer(tokenizer, ["<|end|>x"])
    first.add(ids(tokenizer, "<|end|>")[0])
    second = first.fork()
    assert first.add(ids(tokenizer, "h")[0]) == "h"
    second.add(ids(tokenizer, "x")[0])
    assert (first.stopped, second.stopped, second.text) == (False, True, "")
