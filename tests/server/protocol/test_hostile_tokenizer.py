"""A panic in the pre-tokenizer becomes a 400 error."""

import json
import shutil

import pytest

from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.tokenizer.loader import open_tokenizer
from tiny_llm.server.http.errors import ApiError
from tiny_llm.server.protocol.prompts import PromptRenderer


def test_pre_tokenizer_panic_is_a_400(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TARGET_PATH / name, tmp_path / name)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "(a|aa)+$"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    prompts = PromptRenderer(open_tokenizer(tmp_path, {}))
    prompts.max_tokens = 2048
    assert prompts.decode(prompts.encode("Why?")) == "Why?"
    with pytest.raises(ApiError, match="retry-limit-in-match over") as caught:
        prompts.encode("a" * 100 + "!")
    assert caught.value.status == 400
