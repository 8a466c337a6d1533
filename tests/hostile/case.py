"""Test case with a malformed checkpoint."""

from dataclasses import dataclass
from typing import Any

from tests.hostile.corruptions import Corruption

CONFIG, TOKENIZER, SETTINGS = "config.json", "tokenizer.json", "tokenizer_config.json"
LONG = "x" * 100_000


@dataclass(frozen=True)
class Case:
    """A malformed checkpoint; see `checkpoint_cases.py` for `use` and `is_quick`.

    Attributes:
        corrupt: modifies a copy of a valid checkpoint.
        words: texts that the error message must contain.
    """

    name: str
    corrupt: Corruption
    words: tuple[str, ...]
    use: str = "load_weights"
    is_quick: bool = False
    max_bytes: int = 200_000_000  # limit on memory growth


def case(
    name: str,
    corrupt: Corruption,
    *words: str,
    use: str = "load_weights",
    quick: Any = 0,
    **more: int,
) -> Case:
    return Case(name, corrupt, words, use, bool(quick), **more)
