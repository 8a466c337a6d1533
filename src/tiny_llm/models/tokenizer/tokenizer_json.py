"""Bounded parsing of `tokenizer.json`, and detection of unsafe components.

The main limits are 1.5 to 2 times the values of the largest real file, Gemma 3's: 33 MB, 262,144
tokens and 514,906 merges.

A component needs a sandbox (`sandboxed_encode.py`) if it can make the library hang or abort.
Regular expressions may take exponential time; those of common models, listed below, take a few
steps per character. Components that lengthen a text can be chained. For example, replacing `a` with
`aa` in 40 components takes a terabyte. A post-processor may repeat the entire text.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from ...errors import UserError, short_repr
from ..checkpoint.safe_io import MAX_TOKENIZER_BYTES, ModelError, parse_json_object, read_limited

TOKENIZER_FILE = "tokenizer.json"

MAX_VOCAB_SIZE = 2**19
MAX_MERGES = 2**20
MAX_ADDED_TOKENS = 2**16
MAX_TOKEN_CHARS = 1024
MAX_COMPONENT_VALUES = 2000  # JSON values per component; Llama 3's post-processor has 60

# Limits on the objects that parsing creates, estimated from the JSON's brackets and commas. They
# allow for merges stored as lists of two tokens.
MAX_CONTAINERS = MAX_MERGES + 2**17
MAX_COMMAS = 2 * MAX_CONTAINERS + MAX_VOCAB_SIZE

PATTERN_FIELDS = {"String", "Regex"}
COMPONENTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")

# Maximum factors by which a text's bytes grow. A few rare characters grow by more under NFKC and
# NFKD, but not repeatedly: normalizing their result again leaves it unchanged.
MAX_GROWTH = 32
MAX_SANDBOXED_GROWTH = 4096
MAX_GROWTH_BY_COMPONENT = {
    "Sequence": 1,
    **dict.fromkeys(("Lowercase", "Nmt", "Strip", "StripAccents"), 1),
    **dict.fromkeys(("BertPreTokenizer", "CharDelimiterSplit", "Digits", "FixedLength"), 1),
    **dict.fromkeys(("Punctuation", "Split", "UnicodeScripts"), 1),
    **dict.fromkeys(("Whitespace", "WhitespaceSplit"), 1),
    **dict.fromkeys(("BPEDecoder", "ByteFallback", "CTC", "Fuse", "WordPiece"), 1),
    **dict.fromkeys(("BertNormalizer", "ByteLevel"), 2),
    **dict.fromkeys(("Metaspace", "NFC", "NFD"), 4),
    **dict.fromkeys(("NFKC", "NFKD"), 8),
}

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


def read_tokenizer_json(folder: Path) -> dict[str, Any]:
    """Reads, parses and checks a checkpoint's `tokenizer.json`.

    Raises:
        ModelError: the file is unreadable, not a JSON object, or exceeds a limit.
    """
    text, file = read_limited(folder, TOKENIZER_FILE, MAX_TOKENIZER_BYTES), folder / TOKENIZER_FILE
    _check_number(file, "lists and objects", text.count("[") + text.count("{"), MAX_CONTAINERS)
    _check_number(file, "values", text.count(","), MAX_COMMAS)
    content = parse_json_object(file, text)
    _check_limits(file, content)
    return content


def raise_library_error(failure: str, error: BaseException) -> NoReturn:
    """Raises UserError for an error of the `tokenizers` library, else `error`.

    Args:
        failure: start of the error message.
        error: a caught exception. The library's errors are plain Exceptions; its panics are a
            separate BaseException.
    """
    if type(error) is not Exception and type(error).__name__ != "PanicException":
        raise error
    reason = " ".join(str(error).split()).rstrip(".")
    raise UserError(f"{failure}: {reason}.") from error


def unsafe_component(content: Mapping[str, Any]) -> str | None:
    """Describes the first component that needs a sandbox; None if all are safe."""
    for expression in _regexes([content.get("normalizer"), content.get("pre_tokenizer")]):
        if expression not in KNOWN_REGEXES:
            return f"the regular expression {short_repr(expression)}"
    if _text_growth(content) > MAX_GROWTH:
        return "the normalizer and pre-tokenizer"
    templates = [
        part["single"] for part in _objects(content.get("post_processor")) if "single" in part
    ]
    texts = sum("Sequence" in part for part in _objects(templates))
    return "the post-processor" if len(templates) > 1 or texts > 1 else None


def _check_limits(file: Path, content: Mapping[str, Any]) -> None:
    """Rejects counts and sizes beyond those of any real tokenizer."""
    added, model = content.get("added_tokens"), content.get("model")
    model = model if isinstance(model, dict) else {}
    vocab, merges = model.get("vocab"), model.get("merges")
    for what, value, most in (
        ("tokens", vocab, MAX_VOCAB_SIZE),
        ("merges", merges, MAX_MERGES),
        ("added tokens", added, MAX_ADDED_TOKENS),
    ):
        if isinstance(value, dict | list):
            _check_number(file, what, len(value), most)
    tokens = vocab if isinstance(vocab, dict) else map(_first, _listed(vocab))
    texts = (entry.get("content") for entry in _listed(added) if isinstance(entry, dict))
    longest = max(_longest(tokens), _longest(texts))
    _check_number(file, "characters in a token", longest, MAX_TOKEN_CHARS)
    for name in COMPONENTS:
        number = sum(1 for _ in _values(content.get(name)))
        _check_number(file, f"values in its {name}", number, MAX_COMPONENT_VALUES)
    growth = max(_text_growth(content), _growth(content.get("decoder")))
    if MAX_SANDBOXED_GROWTH < growth < math.inf:
        raise ModelError(
            f"{file} has components that can make a text more than {MAX_SANDBOXED_GROWTH:,} times "
            "longer; download it again."
        )


def _check_number(file: Path, what: str, number: int, most: int) -> None:
    if number > most:
        raise ModelError(
            f"{file} has {number:,} {what}, expected at most {most:,}; download it again."
        )


def _text_growth(content: Mapping[str, Any]) -> float:
    """Upper bound on a text's growth before it is split into tokens."""
    return _growth(content.get("normalizer")) * _growth(content.get("pre_tokenizer"))


def _growth(component: Any) -> float:
    """Upper bound on the factor by which a component increases a text's bytes."""
    return math.prod(map(_own_growth, _objects(component)))


def _own_growth(part: Mapping[str, Any]) -> float:
    if part.keys() <= PATTERN_FIELDS:
        return 1
    kind = part.get("type")
    if kind == "Replace":
        pattern, size = part.get("pattern"), _num_bytes(part.get("content"))
        # An empty string, and some regular expressions, match between any two characters, so the
        # content may be inserted once per byte.
        return max(1, size) if isinstance(pattern, dict) and pattern.get("String") else 1 + size
    if kind == "Prepend":
        return 1 + _num_bytes(part.get("prepend"))
    return MAX_GROWTH_BY_COMPONENT.get(kind, math.inf) if isinstance(kind, str) else math.inf


def _num_bytes(text: Any) -> int:
    return len(str(text).encode(errors="replace"))


def _regexes(components: Any) -> Iterator[str]:
    for part in _objects(components):
        if isinstance(part.get("Regex"), str):
            yield part["Regex"]


def _objects(component: Any) -> Iterator[dict[str, Any]]:
    """Yields all objects in a component's JSON."""
    return (value for value in _values(component) if isinstance(value, dict))


def _values(component: Any) -> Iterator[Any]:
    """Yields all values in a component's JSON, in order."""
    pending = [component]
    while pending:
        value = pending.pop()
        yield value
        if isinstance(value, dict | list):
            pending += reversed(value.values() if isinstance(value, dict) else value)


def _longest(tokens: Iterable[Any]) -> int:
    return max((len(token) for token in tokens if isinstance(token, str)), default=0)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _first(entry: Any) -> Any:
    """Text of a Unigram vocabulary entry, [text, score]."""
    return entry[0] if isinstance(entry, list) and entry else None
