"""Prompts with unusual templates and tokenizers."""

import json
import shutil

import pytest

from tests.server.protocols import CHAT, FRANCE
from tiny_llm.demo import TARGET_PATH
from tiny_llm.models import load_weights
from tiny_llm.models.tokenizer.loader import open_tokenizer
from tiny_llm.server.http.errors import ApiError
from tiny_llm.server.protocol.prompts import PromptRenderer
from tiny_llm.server.protocol.request_fields import warn_once

MESSAGES = CHAT.body()["messages"]
CONTINUED = {"continue_final_message": True}


def renderer(tokenizer, chat_template=None):
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    prompts = PromptRenderer(tokenizer)
    prompts.max_tokens = 2048
    return prompts


@pytest.mark.parametrize("text", ["|", "<", "The capital of", "im_end", " a ", "\n\n"])
@pytest.mark.parametrize("trim", ["", " | trim"])
def test_continued_message_ends_the_prompt(text, trim):
    message = "<|im_start|>{{ m.role }}\n{{ m.content%s }}<|im_end|>\n" % trim  # noqa: UP031
    template = "{% for m in messages %}" + message + "{% endfor %}"
    prompts = renderer(load_weights("demo")[1], template)
    messages = [*MESSAGES, {"role": "assistant", "content": "x" + text}]
    prompt = prompts.encode_chat(messages, None, {}, **CONTINUED)
    final = ("x" + text).rstrip() if trim else "x" + text
    assert prompts.decode(prompt.token_ids) == (
        f"<|im_start|>user\n{FRANCE}<|im_end|>\n<|im_start|>assistant\n{final}"
    )


def test_message_that_the_template_drops_cannot_be_continued():
    prompts = renderer(load_weights("demo")[1], "{{ messages[0].content }}")
    messages = [*MESSAGES, {"role": "assistant", "content": "The"}]
    with pytest.raises(ApiError, match="can be continued only if"):
        prompts.encode_chat(messages, None, {}, **CONTINUED)


@pytest.mark.parametrize("enable_thinking", [True, False, None])
def test_thinking_option_without_a_thinking_mode_is_named_as_ignored(
    caplog, monkeypatch, enable_thinking
):
    tokenizer = load_weights("demo")[1]
    monkeypatch.setattr(type(tokenizer), "has_thinking", False)
    warn_once.cache_clear()
    renderer(tokenizer).encode_chat(MESSAGES, None, {"enable_thinking": enable_thinking})
    messages = [record.message for record in caplog.records]
    ignored = "the model has no thinking mode: options that enable thinking are ignored"
    assert messages == ([ignored] if enable_thinking else [])


def test_pre_tokenizer_panic_is_a_400(tmp_path):
    shutil.copyfile(TARGET_PATH / "tokenizer_config.json", tmp_path / "tokenizer_config.json")
    content = json.loads((TARGET_PATH / "tokenizer.json").read_text())
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "(a|aa)+$"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    prompts = renderer(open_tokenizer(tmp_path, {}))
    assert prompts.decode(prompts.encode("Why?")) == "Why?"
    with pytest.raises(ApiError, match="retry-limit-in-match over") as caught:
        prompts.encode("a" * 100 + "!")
    assert caught.value.status == 400
