"""Texts into tokens with regular expressions that are not known to end.

`tokenizer.json` may cut a text into words with any regular expression. Some take exponential time
on some texts, and the library either works on or panics. The expressions below are those of common
models, which need a few steps a character. A tokenizer with any other encodes in a process of its
own, within a time that grows with the text: slower, but it ends.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from ...errors import UserError, short_repr
from .sandbox import SandboxedProcess

PROGRAM = Path(__file__).with_name("sandboxed_encode_main.py")
BASE_TIMEOUT_SECONDS = 3.0  # for a short text
MIN_CHARACTERS_PER_SECOND = 200_000  # what a slow machine encodes
MAX_MEMORY_BYTES = 2**30  # of the process; a tokenizer of 250,000 tokens takes a third
MAX_RESPONSE_BYTES = 2**27

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"

KNOWN_REGEXES = {
    # GPT-2
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    # Qwen2, Qwen3
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_PUNCTUATION}",
    # Llama 3, SmolLM3
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_PUNCTUATION}",
    # Mistral's Tekken
    rf"{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


class SandboxedEncoder:
    """Encodes texts within bounds. May be used by several threads, which wait for each other.

    Args:
        file: the `tokenizer.json`.
        expression: of the file, for the sentence.
    """

    def __init__(self, file: Path, expression: str):
        self._regex = expression
        arguments = [str(file), str(MAX_MEMORY_BYTES)]
        self._process = SandboxedProcess(
            PROGRAM, arguments, BASE_TIMEOUT_SECONDS, MAX_RESPONSE_BYTES
        )

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """The token ids of a text.

        Raises:
            UserError: it takes too much time or memory, or the library gives up.
        """
        seconds = BASE_TIMEOUT_SECONDS + len(text) / MIN_CHARACTERS_PER_SECOND
        payload = {"text": text, "special": add_special_tokens}
        try:
            ids: list[int] = self._process.request(payload, seconds)["ids"]
        except ValueError as error:
            raise UserError(
                "the text cannot be cut into words with the regular expression "
                f"{short_repr(self._regex)} of tokenizer.json: {error}; send another text, or "
                "use a model whose tokenizer.json has a common expression."
            ) from error
        return ids


def find_unknown_regex(tokenizer: tokenizers.Tokenizer) -> str | None:
    """A regular expression that a tokenizer applies to texts, and that is not known; or None."""
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        if part is not None:
            for expression in _regexes(json.loads(part.__getstate__())):
                if expression not in KNOWN_REGEXES:
                    return expression
    return None


def _regexes(part: Any) -> Iterator[str]:
    """The regular expressions in the JSON of a tokenizer's part."""
    if isinstance(part, dict):
        if isinstance(part.get("Regex"), str):
            yield part["Regex"]
        part = list(part.values())
    for below in part if isinstance(part, list) else ():
        yield from _regexes(below)
