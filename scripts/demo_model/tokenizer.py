"""Trains the demo model's tokenizer: byte-level BPE with 4,096 tokens.

The alphabet contains all 256 bytes, so any UTF-8 text can be encoded, at worst with one token per
byte. Pre-tokenization is Qwen2's, with one token per digit. The special tokens and the chat
template's features are Qwen3's: ChatML, an optional system message, thinking mode, tools.

    python -m demo_model.tokenizer --out FOLDER
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre
from tokenizers.trainers import BpeTrainer

from .corpus.mixture import training_examples
from .seeds import CORPUS_SEED

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCAB_SIZE = 4096
NUM_EXAMPLES = 120_000
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINK_TOKENS = ("<think>", "</think>")
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def texts() -> Iterator[str]:
    """Yields the corpus as plain text: messages and reasoning."""
    for example in itertools.islice(training_examples(CORPUS_SEED), NUM_EXAMPLES):
        for message in example.messages:
            yield message["role"]  # included so that BPE learns each role as one token
            yield message["content"]
        yield example.thought


def train_tokenizer() -> Tokenizer:
    """Learns the merges and appends the special tokens to the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre.Sequence(
        [
            pre.Split(Regex(PATTERN), behavior="isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCAB_SIZE - len(CONTROL_TOKENS) - len(THINK_TOKENS),
        initial_alphabet=pre.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in THINK_TOKENS])
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(
            f"expected {VOCAB_SIZE} tokens, got {tokenizer.get_vocab_size()} from the corpus"
        )
    return tokenizer


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the files that `transformers` and `mlx_lm` read."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = CHAT_TEMPLATE.read_text()
    (folder / "chat_template.jinja").write_text(template)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Trains and writes the tokenizer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    write_tokenizer(train_tokenizer(), arguments.out)


if __name__ == "__main__":
    main()
