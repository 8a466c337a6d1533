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

from ..errors import UserError, shortened
from .bounded_process import BoundedProcess

PROGRAM = Path(__file__).with_name("encode_program.py")
SECONDS = 3.0  # for a short text
CHARACTERS_PER_SECOND = 200_000  # what a slow machine encodes
MAX_BYTES = 2**30  # of the process; a tokenizer of 250,000 tokens takes a third
MAX_ANSWER_BYTES = 2**27

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"

KNOWN = {
    # GPT-2
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    # Qwen2, Qwen3
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_PUNCTUATION}",
    # Llama 3, SmolLM3
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_PUNCTUATION}",
    # Mistral's Tekken
    rf"{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


class BoundedEncoder:
    """Encodes texts within bounds. May be used by several threads, which wait for each other.

    Args:
        file: the `tokenizer.json`.
        expression: of the file, for the sentence.
    """

    def __init__(self, file: Path, expression: str):
        self._expression = expression
        arguments = [str(file), str(MAX_BYTES)]
        self._process = BoundedProcess(PROGRAM, arguments, SECONDS, MAX_ANSWER_BYTES)

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """The token ids of a text.

        Raises:
            UserError: it takes too much time or memory, or the library gives up.
        """
        seconds = SECONDS + len(text) / CHARACTERS_PER_SECOND
        question = {"text": text, "special": add_special_tokens}
        try:
            ids: list[int] = self._process.ask(question, seconds)["ids"]
        except ValueError as error:
            raise UserError(
                "the text cannot be cut into words with the regular expression "
                f"{shortened(self._expression)} of tokenizer.json: {error}; send another text, or "
                "use a model whose tokenizer.json has a common expression."
            ) from error
        return ids


def unknown_expression(tokenizer: tokenizers.Tokenizer) -> str | None:
    """A regular expression that a tokenizer applies to texts, and that is not known; or None."""
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer):
        if part is not None:
            for expression in _expressions(json.loads(part.__getstate__())):
                if expression not in KNOWN:
                    return expression
    return None


def _expressions(part: Any) -> Iterator[str]:
    """The regular expressions in the JSON of a tokenizer's part."""
    if isinstance(part, dict):
        if isinstance(part.get("Regex"), str):
            yield part["Regex"]
        part = list(part.values())
    for below in part if isinstance(part, list) else ():
        yield from _expressions(below)
