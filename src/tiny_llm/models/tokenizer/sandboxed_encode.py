"""Sandboxed encoding for tokenizers with unknown regular expressions.

`tokenizer.json` may pre-tokenize with any regular expression. Some take exponential time on some
texts, and the library hangs or panics. The known expressions below are those of common models and
take a few steps per character. A tokenizer with any other expression encodes in a sandboxed process
with a time limit proportional to the text: slower, but bounded.
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
MIN_CHARACTERS_PER_SECOND = 200_000  # on a slow machine
MAX_MEMORY_BYTES = 2**30  # a vocabulary of 250,000 tokens takes a third
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
    """Encodes within time and memory limits. Thread-safe; calls are serialized.

    Args:
        file: the `tokenizer.json`.
        expression: the unknown regular expression, for error messages.
    """

    def __init__(self, file: Path, expression: str):
        self._regex = expression
        arguments = [str(file), str(MAX_MEMORY_BYTES)]
        self._process = SandboxedProcess(
            PROGRAM, arguments, BASE_TIMEOUT_SECONDS, MAX_RESPONSE_BYTES
        )

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Encodes a text.

        Raises:
            UserError: the time or memory limit is exceeded, or the library fails.
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
    """First unknown regular expression of a tokenizer; None if all are known."""
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        if part is not None:
            for expression in _regexes(json.loads(part.__getstate__())):
                if expression not in KNOWN_REGEXES:
                    return expression
    return None


def _regexes(part: Any) -> Iterator[str]:
    """Yields the regular expressions in a component's JSON."""
    if isinstance(part, dict):
        if isinstance(part.get("Regex"), str):
            yield part["Regex"]
        part = list(part.values())
    for below in part if isinstance(part, list) else ():
        yield from _regexes(below)
