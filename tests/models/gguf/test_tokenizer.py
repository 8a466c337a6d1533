"""Tokenizers from GGUF metadata."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from tests.models.gguf.support import TEMPLATE, write_file
from tiny_llm import demo
from tiny_llm.models.checkpoint.safe_io import read_json
from tiny_llm.models.gguf.reader import open_gguf
from tiny_llm.models.gguf.tokenizer import gguf_tokenizer
from tiny_llm.models.tokenizer.loader import open_tokenizer
from tiny_llm.models.tokenizer.tokenizer import detokenizer_with_leading_space

TOOL_USE = {"name": "tool_use", "template": "tools: {{ tools | length }}"}
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
WORDS = {"▁": -1.0, "a": -2.0, "b": -3.0, "▁a": -4.0, "ab": -3.5, "▁ab": -9.0, "▁▁": -2.5}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
TEXTS = [
    "Hello, world!",
    "  two spaces, a tab\tand\r\nlines \n\n",
    "Straße, naïve, 中文, 😀, e\u0301",
    "We're 12345 of 0x1F; it'S",
    "",
    "<|im_start|>user\nhi<|im_end|>",
]


def write(path: Path, kind: str, tokens: list[str], types: list[int], **fields: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for name, value in fields.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.add_chat_template([{"name": "default", "template": TEMPLATE}, TOOL_USE])
    write_file(writer)
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The demo model's tokenizer, from its folder and from a GGUF file."""
    folder = demo.TARGET_PATH
    content = json.loads((folder / "tokenizer.json").read_text())
    vocab = content["model"]["vocab"] | {t["content"]: t["id"] for t in content["added_tokens"]}
    tokens = sorted(vocab, key=vocab.__getitem__)
    special = {t["content"]: t["special"] for t in content["added_tokens"]}
    types = [{None: NORMAL, True: CONTROL, False: USER_DEFINED}[special.get(t)] for t in tokens]
    merges = [m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]]
    eos = vocab["<|im_end|>"]
    file = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write(file, "gpt2", tokens, types, merges=merges, pre="qwen2", eos_token_id=eos)
    original = open_tokenizer(folder, read_json(folder, "config.json"))
    return original, gguf_tokenizer(open_gguf(file))


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_tokens_equal_the_original(pair, text):
    original, ours = pair
    for special in (True, False):
        ids = original.encode(text, add_special_tokens=special)
        assert ours.encode(text, add_special_tokens=special) == ids
    assert ours.decode(ids) == original.decode(ids)
    assert [ours.token_bytes(i) for i in ids] == [original.token_bytes(i) for i in ids]


def test_vocabulary_eos_and_templates(pair):
    original, ours = pair
    assert ours.get_vocab() == original.get_vocab()
    assert ours.has_thinking == original.has_thinking
    assert original.eos_token_ids <= ours.eos_token_ids
    ends = {ours.decode([i]) for i in ours.eos_token_ids}
    assert ends <= {"<|im_end|>", "<|endoftext|>"}
    messages = [{"role": "user", "content": "hi"}]
    assert ours.apply_chat_template(messages, tokenize=False) == "hi"
    assert ours.apply_chat_template(messages, tools=[{}, {}], tokenize=False) == "tools: 2"


@pytest.fixture
def sentencepiece(tmp_path):
    tokens = [*PIECES, *WORDS]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(WORDS)]
    scores = [*[0.0] * len(PIECES), *WORDS.values()]

    def make(**fields: Any) -> Any:
        fields = {"bos_token_id": 1, "eos_token_id": 2, **fields}
        file = write(tmp_path / "model.gguf", "llama", tokens, types, scores=scores, **fields)
        return gguf_tokenizer(open_gguf(file))

    return make


def pieces(tokenizer: Any, text: str) -> list[str]:
    names = {index: name for name, index in tokenizer.get_vocab().items()}
    return [names[i] for i in tokenizer.encode(text)]


def test_sentencepiece_merges_the_best_score_first(sentencepiece):
    tokenizer = sentencepiece()
    assert pieces(tokenizer, "ab") == ["<s>", "▁ab"]
    assert pieces(tokenizer, "a  b") == ["<s>", "▁a", "▁▁", "b"]
    assert pieces(tokenizer, "é")[1:] == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("é ab")[1:]) == "é ab"
    assert pieces(sentencepiece(add_bos_token=False), "b") == ["▁", "b"]
    assert pieces(sentencepiece(add_space_prefix=False), "ab") == ["<s>", "ab"]


def test_sentencepiece_streams_bytes(sentencepiece):
    tokenizer = sentencepiece()
    detokenizer = detokenizer_with_leading_space(tokenizer)
    segments = []
    for token in tokenizer.encode("aé ab", add_special_tokens=False):
        detokenizer.add_token(token)
        segments.append(detokenizer.last_segment)
    assert segments == [" a", "", "é", " ab"]
    assert tokenizer.eos_token_ids == {2}


@pytest.mark.parametrize(
    ("kind", "pre", "message"),
    [
        ("bert", "default", "its tokenizer is of kind bert; supported kinds are gpt2, llama, gem"),
        ("gpt2", "new", "its pre-tokenizer, new, is not supported; supported ones are gpt-2, "),
    ],
)
def test_unsupported_tokenizers(tmp_path, kind, pre, message):
    file = write(tmp_path / "model.gguf", kind, ["a", "b"], [1, 1], pre=pre)
    with pytest.raises(ValueError, match=message):
        gguf_tokenizer(open_gguf(file))


def test_llama_3_tokenizer_adds_bos(tmp_path):
    types, fields = [CONTROL, NORMAL], {"bos_token_id": 0, "add_bos_token": True}
    file = write(tmp_path / "model.gguf", "gpt2", ["<bos>", "a"], types, pre="llama-bpe", **fields)
    tokenizer = gguf_tokenizer(open_gguf(file))
    assert tokenizer.encode("a") == [0, 1]
    assert tokenizer.encode("a", add_special_tokens=False) == [1]
