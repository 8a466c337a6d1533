"""Sandboxed encoding: same tokens; an error if it does not terminate."""

import json
import shutil
from pathlib import Path

import pytest

from tiny_llm.demo import TARGET_PATH
from tiny_llm.engine.inputs.length_check import check_length
from tiny_llm.errors import UserError
from tiny_llm.models.tokenizer.hf_fallback import load_mlx_lm_tokenizer
from tiny_llm.models.tokenizer.sandboxed_encode import find_unknown_regex
from tiny_llm.models.tokenizer.tokenizer import open_tokenizer

CONFIG = {"eos_token_id": 1}
TEXT = "Größe \U0001f600 <|im_start|> don't 123\n\n  x"


def folder_with(folder: Path, change) -> Path:
    """The demo's tokenizer with its pre-tokenizer expression changed by `change`."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TARGET_PATH / name, folder / name)
    content = json.loads((folder / "tokenizer.json").read_text())
    pattern = content["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    pattern["Regex"] = change(pattern["Regex"])
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_unknown_expression_gives_the_same_tokens(tmp_path):
    reference = open_tokenizer(TARGET_PATH, CONFIG)
    other = open_tokenizer(folder_with(tmp_path, lambda regex: f"(?:{regex})"), CONFIG)
    assert find_unknown_regex(reference.backend_tokenizer) is None
    assert find_unknown_regex(other.backend_tokenizer).startswith("(?:(?i:'s")
    assert other.encode(TEXT) == reference.encode(TEXT)


def test_transformers_tokenizer_is_sandboxed(tmp_path):
    folder = folder_with(tmp_path, lambda _: "(a|aa)+$")
    tokenizer = load_mlx_lm_tokenizer(folder, {1})
    with pytest.raises(UserError, match="cannot be cut into words"):
        tokenizer.encode("a" * 100 + "!")
    for template in ("{{ 'a' * 10 ** 10 }}", "{{ messages[0].content * 100 }}"):
        with pytest.raises(ValueError, match=r"too much memory|cannot be cut"):
            tokenizer.apply_chat_template([{"content": "a"}], chat_template=template + "!")


def test_overlong_text_is_not_encoded():
    tokenizer = open_tokenizer(TARGET_PATH, CONFIG)
    check_length(tokenizer, "it", "why " * 300_000, 1_200_000)
    with pytest.raises(UserError, match=r"^it has 1,200,000 characters, at least 80,000 tokens"):
        check_length(tokenizer, "it", "why " * 300_000, 2048)
    # Normalization shortens this text, so its length gives no lower bound.
    check_length(tokenizer, "it", "e\u0301" * 600_000, 2048)
