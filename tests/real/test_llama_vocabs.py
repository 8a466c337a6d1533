"""Token ids of llama.cpp's vocabularies, compared with those that its tests expect."""

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_llm.models.gguf.reader import open_gguf
from tiny_llm.models.gguf.tokenizer import gguf_tokenizer
from tiny_llm.models.tokenizer.loader import open_tokenizer

SEPARATOR = "\n__ggml_vocab_test__\n"
VOCABULARIES = (
    *("command-r", "deepseek-coder", "falcon", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3"),
    *("gemma-4", "qwen2", "qwen35", "refact", "starcoder"),
)


# Official tokenizers with the same ids.
OFFICIAL = {"qwen2": "tokenizer-qwen3", "llama-bpe": "tokenizer-llama3"}


@pytest.mark.parametrize("name", [*VOCABULARIES, *OFFICIAL.values()])
def test_token_ids(artifact: Callable[[str], Path], name: str) -> None:
    vocabulary = next((key for key, value in OFFICIAL.items() if value == name), name)
    file = artifact("llama-vocabs") / f"ggml-vocab-{vocabulary}.gguf"
    is_official = name in OFFICIAL.values()
    tokenizer = (
        open_tokenizer(artifact(name), {}) if is_official else gguf_tokenizer(open_gguf(file))
    )
    texts = file.with_suffix(".gguf.inp").read_text(encoding="utf-8").split(SEPARATOR)
    expected = file.with_suffix(".gguf.out").read_text().split("\n")
    assert len(texts) > 40
    for text, ids in zip(texts, expected, strict=False):
        # Qwen's own tokenizers normalize to NFC; llama.cpp does not.
        if name.startswith("qwen") and not unicodedata.is_normalized("NFC", text):
            continue
        encoded = tokenizer.encode(text, add_special_tokens=False)
        assert encoded == [int(i) for i in ids.split()], repr(text)
