"""Token ids of llama.cpp's vocabularies, compared with those that its tests expect."""

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from tiny_llm.models.gguf.reader import open_gguf
from tiny_llm.models.gguf.tokenizer import gguf_tokenizer

SEPARATOR = "\n__ggml_vocab_test__\n"
VOCABULARIES = (
    *("command-r", "deepseek-coder", "falcon", "gpt-2", "llama-bpe", "llama-spm", "mpt", "phi-3"),
    *("gemma-4", "qwen2", "qwen35", "refact", "starcoder"),
)


@pytest.mark.parametrize("name", VOCABULARIES)
def test_token_ids(artifact: Callable[[str], Path], name: str) -> None:
    file = artifact("llama-vocabs") / f"ggml-vocab-{name}.gguf"
    tokenizer = gguf_tokenizer(open_gguf(file))
    texts = file.with_suffix(".gguf.inp").read_text(encoding="utf-8").split(SEPARATOR)
    expected = file.with_suffix(".gguf.out").read_text().split("\n")
    assert len(texts) > 40
    for text, ids in zip(texts, expected, strict=False):
        # Qwen's own tokenizers normalize to NFC; llama.cpp does not.
        if name.startswith("qwen") and not unicodedata.is_normalized("NFC", text):
            continue
        encoded = tokenizer.encode(text, add_special_tokens=False)
        assert encoded == [int(i) for i in ids.split()], repr(text)
