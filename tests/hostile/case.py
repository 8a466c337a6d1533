"""Test case with a malformed checkpoint."""

from dataclasses import dataclass

from tests.hostile.corruptions import Corruption

CONFIG, TOKENIZER, SETTINGS = "config.json", "tokenizer.json", "tokenizer_config.json"
GENERATION = "generation_config.json"


@dataclass(frozen=True)
class Case:
    """A malformed checkpoint; see `checkpoint_cases.py` for `use`.

    Attributes:
        corrupt: modifies a copy of a valid checkpoint.
        words: texts that the error message must contain.
    """

    name: str
    corrupt: Corruption
    words: tuple[str, ...]
    use: str


def case(name: str, corrupt: Corruption, *words: str, use: str = "load_weights") -> Case:
    return Case(name, corrupt, words, use)
