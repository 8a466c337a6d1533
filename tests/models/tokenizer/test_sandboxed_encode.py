"""Encoding in the sandbox: same tokens as outside; hangs and panics end it."""

import json
import shutil
from pathlib import Path

import pytest

from tiny_llm.demo import TARGET_PATH
from tiny_llm.errors import UserError
from tiny_llm.models.tokenizer.hf_fallback import load_mlx_lm_tokenizer
from tiny_llm.models.tokenizer.tokenizer import open_tokenizer
from tiny_llm.models.tokenizer.tokenizer_json import read_tokenizer_json, unsafe_component

CONFIG = {"eos_token_id": 1}
TEXT = "Größe \U0001f600 <|im_start|> don't 123\n\n  x"


def folder_with(folder: Path, change) -> Path:
    """Writes the demo's tokenizer with a pre-tokenizer regex from `change`."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TARGET_PATH / name, folder / name)
    content = json.loads((folder / "tokenizer.json").read_text())
    pattern = content["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    pattern["Regex"] = change(pattern["Regex"])
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def test_custom_regex_gives_the_same_tokens(tmp_path):
    reference = open_tokenizer(TARGET_PATH, CONFIG)
    other = open_tokenizer(folder_with(tmp_path, lambda regex: f"(?:{regex})"), CONFIG)
    assert unsafe_component(read_tokenizer_json(TARGET_PATH)) is None
    component = unsafe_component(read_tokenizer_json(tmp_path))
    assert component.startswith("the regular expression \"(?:(?i:'s")
    assert other.encode(TEXT) == reference.encode(TEXT)


def test_transformers_tokenizer_is_sandboxed(tmp_path):
    folder = folder_with(tmp_path, lambda _: "(a|aa)+$")
    tokenizer = load_mlx_lm_tokenizer(folder, {1})
    with pytest.raises(UserError, match="cannot be encoded"):
        tokenizer.encode("a" * 100 + "!")
    for template in ("{{ 'a' * 10 ** 10 }}", "{{ messages[0].content * 100 }}"):
        with pytest.raises(ValueError, match=r"too much memory|cannot be encoded"):
            tokenizer.apply_chat_template([{"content": "a"}], chat_template=template + "!")


@pytest.mark.slow
def test_panic_of_the_library_is_an_error():
    with pytest.raises(UserError, match="the tokenizer cannot encode the text: Onig"):
        open_tokenizer(TARGET_PATH, CONFIG).encode(" " * 12_000_000)
