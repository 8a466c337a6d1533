"""Limits of tokenizer.json: realistic sizes load, unsafe parts are detected."""

import json
import shutil
import string

import pytest

from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.checkpoint.safe_io import ModelError
from tiny_llm.models.tokenizer.tokenizer import open_tokenizer
from tiny_llm.models.tokenizer.tokenizer_json import read_tokenizer_json, unsafe_component

CHARACTERS = string.ascii_letters + string.digits + "-_"
UNDERSCORE = "\u2581"  # SentencePiece's space


@pytest.mark.slow
def test_vocabulary_and_merges_of_gemma_load(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TARGET_PATH / name, tmp_path / name)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    pairs = [a + b for a in CHARACTERS for b in CHARACTERS]
    merges = [list(pair) for pair in pairs]
    for pair in pairs:
        for c in CHARACTERS:
            merges += [[pair, c], [pair[0], pair[1] + c]]
    whole = dict.fromkeys([*content["model"]["vocab"], *map("".join, merges)])
    content["model"]["vocab"] = {token: index for index, token in enumerate(whole)}
    content["model"]["merges"] = merges
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert len(whole) > 262_144
    assert len(merges) > 514_906
    tokenizer = open_tokenizer(tmp_path, {"eos_token_id": 1})
    assert tokenizer.decode(tokenizer.encode("abc")) == "abc"
    assert len(tokenizer.encode("abc")) == 1


def replace(text, by):
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


def sequence(*normalizers):
    return {"type": "Sequence", "normalizers": list(normalizers)}


LLAMA_2 = sequence({"type": "Prepend", "prepend": UNDERSCORE}, replace(" ", UNDERSCORE))
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


@pytest.mark.parametrize(
    "normalizer",
    [None, {"type": "NFC"}, LLAMA_2, replace(" ", UNDERSCORE), sequence(*[replace("a", "b")] * 99)],
)
def test_common_normalizers_need_no_sandbox(normalizer):
    assert unsafe_component({"normalizer": normalizer, "pre_tokenizer": BYTE_LEVEL}) is None


@pytest.mark.parametrize(
    ("components", "expected"),
    [
        ({"normalizer": sequence(*[replace("a", "aa")] * 6)}, "normalizer"),
        ({"normalizer": sequence(*[replace("", "a")] * 6)}, "normalizer"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, "normalizer"),
        ({"normalizer": {"pattern": {"String": "a"}, "content": "aa"}}, "normalizer"),
        ({"normalizer": {**replace("", "a"), "pattern": {"Regex": "a*"}}}, "expression 'a*'"),
        ({"pre_tokenizer": {"pretokenizers": [BYTE_LEVEL] * 6}}, "pre-tokenizer"),
        ({"post_processor": {"single": [{"Sequence": {"id": "A"}}] * 2}}, "post-processor"),
        ({"post_processor": {"processors": [{"single": []}] * 2}}, "post-processor"),
    ],
)
def test_unsafe_components_are_detected(components, expected):
    assert expected in unsafe_component(components)


def test_deeply_nested_component_is_rejected(tmp_path):
    normalizer: dict = {"type": "NFC"}
    for _ in range(400):
        normalizer = sequence(*[normalizer, {"type": "NFC"}, {"type": "NFC"}])
    (tmp_path / "tokenizer.json").write_text(json.dumps({"normalizer": normalizer}))
    with pytest.raises(ModelError, match=r"values in its normalizer, expected at most 2,000"):
        read_tokenizer_json(tmp_path)
