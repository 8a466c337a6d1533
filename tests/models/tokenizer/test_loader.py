"""Tokenizer files: `tokenizer.json` as it is, tokens and settings of other files."""

import json
import shutil
from pathlib import Path

import pytest
import tokenizers

from tests.models.tokenizer.test_tokenizer import edit, load_tokenizer, segments
from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.tokenizer.loader import open_tokenizer

NEW, OTHER = "<|not there|>", "<|im_start|>"
TEXT = f"Größe  of\n\n 3.14 {NEW} don't{OTHER}"
SETTINGS = "tokenizer_config.json"


@pytest.fixture
def folder(tmp_path) -> Path:
    """Editable copy of the demo's tokenizer."""
    for name in ("tokenizer.json", SETTINGS):
        shutil.copyfile(TARGET_PATH / name, tmp_path / name)
    return tmp_path


def raw_ids(folder: Path, text: str) -> list[int]:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids


@pytest.mark.parametrize(
    "name",
    ["GPT2Tokenizer", "CodeGenTokenizerFast", "LlamaTokenizer", "Qwen2Tokenizer", "Unknown", None],
)
def test_tokenizer_class_does_not_change_the_ids(folder, name):
    own = {"AutoTokenizer": ["code.Tokenizer", None]}
    edit(folder, SETTINGS, tokenizer_class=name, auto_map=own)
    ours = open_tokenizer(folder, {})
    ids = raw_ids(folder, TEXT)
    assert ours.encode(TEXT) == ids
    # `transformers`' features use the same ids.
    assert ours.encode(TEXT, return_tensors="np").tolist() == [ids]
    for detokenizer in (ours.detokenizer, ours.mlx_lm.detokenizer):
        assert "".join(segments(detokenizer, ours.encode("a\0b"))) == "a\0b"


@pytest.mark.parametrize(
    "changes",
    [
        {"eos_token": NEW},
        {"additional_special_tokens": [NEW, OTHER]},
        {"added_tokens_decoder": {"4096": {"content": NEW, "lstrip": True}}},
        {"added_tokens_decoder": {"4096": {"content": NEW, "special": True}}, "eos_token": NEW},
    ],
)
def test_tokens_of_the_tokenizer_config_are_added(folder, changes):
    edit(folder, SETTINGS, **changes)
    ours, theirs = open_tokenizer(folder, {}), load_tokenizer(folder)
    assert ours.encode(TEXT) == theirs.encode(TEXT) != raw_ids(folder, TEXT)
    assert ours.get_vocab()[NEW] == 4096
    assert ours.eos_token_ids == theirs.eos_token_ids
    for skip in (False, True):
        ids = ours.encode(TEXT)
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip)
    # A token beyond the embedding stays text.
    assert open_tokenizer(folder, {"vocab_size": 4096}).encode(TEXT) == raw_ids(folder, TEXT)


def test_tokens_of_older_files_are_added(folder):
    edit(folder, SETTINGS, added_tokens_decoder=..., eos_token=...)
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": OTHER}}))
    (folder / "added_tokens.json").write_text(json.dumps({NEW: 4096}))
    ours, theirs = open_tokenizer(folder, {}), load_tokenizer(folder)
    assert ours.encode(TEXT) == theirs.encode(TEXT) != raw_ids(folder, TEXT)
    assert ours.eos_token_ids == theirs.eos_token_ids == set(raw_ids(folder, OTHER))


@pytest.mark.parametrize("add", [True, False])
def test_bos_and_eos_are_those_of_tokenizer_json(folder, add, caplog):
    """As in `transformers`, which ignores the settings."""
    (bos,), (eos,) = raw_ids(folder, OTHER), raw_ids(folder, "<|im_end|>")
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{OTHER} $A", special_tokens=[(OTHER, bos)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    edit(folder, SETTINGS, add_bos_token=add, add_eos_token=add, bos_token=OTHER)
    ours = open_tokenizer(folder, {})
    assert ours.encode("one two") == load_tokenizer(folder).encode("one two")
    assert ours.encode("one two")[0] == bos
    assert eos not in ours.encode("one two")
    ignored = "add_eos_token" if add else "add_bos_token"
    assert caplog.messages == [f"{folder / SETTINGS}: ignored {ignored} (tokenizer.json differs)."]


def test_ignored_settings_are_logged(folder, caplog):
    edit(folder, SETTINGS, clean_up_tokenization_spaces=True, add_prefix_space=True)
    ours = open_tokenizer(folder, {})
    assert ours.encode("one two") == raw_ids(folder, "one two")
    assert ours.decode(ours.encode("one , two")) == "one , two"
    ignored = "clean_up_tokenization_spaces, add_prefix_space (tokenizer.json differs)"
    assert caplog.messages == [f"{folder / SETTINGS}: ignored {ignored}."]


def test_truncation_and_padding_of_the_file_are_ignored(folder):
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = tokenizer.encode(TEXT).ids
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9999)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert open_tokenizer(folder, {}).encode(TEXT) == expected


def test_vocabulary_and_merges_are_converted(folder):
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    edit(folder, SETTINGS, tokenizer_class="Qwen2Tokenizer")
    ours = open_tokenizer(folder, {})
    assert ours.encode(TEXT) == load_tokenizer(folder).encode(TEXT)
    assert ours.decode(ours.encode("Hello there")) == "Hello there"
    edit(folder, SETTINGS, tokenizer_class="LlamaTokenizerFast")
    with pytest.raises(ValueError, match=r"no tokenizer.json, which .* LlamaTokenizer, requires"):
        open_tokenizer(folder, {})


REPLACE = tokenizers.decoders.Replace("\u2581", " ")
FALLBACK, FUSE = tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()
STRIP = tokenizers.decoders.Strip(" ", 1, 0)


@pytest.mark.parametrize(
    "decoder",
    [
        tokenizers.decoders.Sequence([REPLACE, FALLBACK, FUSE, STRIP]),  # Llama 2
        tokenizers.decoders.Sequence([REPLACE, FALLBACK, FUSE]),  # Gemma
        tokenizers.decoders.Metaspace(),
    ],
)
def test_sentencepiece_tokens_stream_as_they_decode(folder, decoder):
    words = ["\u2581", "\u2581a", "a", "\u2581\u2581", "\n"]
    vocab = [*(f"<0x{byte:02X}>" for byte in range(256)), *words]
    model = tokenizers.models.BPE({token: i for i, token in enumerate(vocab)}, [])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.decoder = decoder
    tokenizer.add_tokens(["\u2581\u2581\u2581"])
    tokenizer.save(str(folder / "tokenizer.json"))
    edit(folder, SETTINGS, eos_token=None, pad_token=None)
    ours = open_tokenizer(folder, {})
    pieces = [["\u2581a", "\u2581a"], ["\u2581", "a", "\u2581"]]
    if not isinstance(decoder, tokenizers.decoders.Metaspace):  # has no byte tokens
        pieces += [["\u2581\u2581", "a"], ["\u2581\u2581\u2581", "a"]]
        pieces.append(["\u2581a", *(f"<0x{byte:02X}>" for byte in "é😀\0".encode()), "\u2581a"])
    for tokens in pieces:
        ids = [tokenizer.token_to_id(token) for token in tokens]
        assert "".join(segments(ours.detokenizer, ids)) == ours.decode(ids) == tokenizer.decode(ids)


def test_unknown_decoder_is_rejected(folder):
    decoder = {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True}
    edit(folder, "tokenizer.json", decoder=decoder)
    with pytest.raises(ValueError, match=r"has the decoder CTC, expected ByteLevel, or Sentence"):
        open_tokenizer(folder, {})
