"""Official chat templates, rendered as by `transformers`."""

from pathlib import Path

import pytest
from jinja2 import TemplateError

from tests.real.conftest import artifact_folder
from tiny_llm.models.tokenizer.chat_template import render_template
from tools.real_artifacts import cached_folder

CHAT = [
    {"role": "user", "content": "Größe <b>?"},
    {"role": "assistant", "content": "Hm."},
    {"role": "user", "content": "Why? 🙂"},
]
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tools": None}


# Fail without tools, here and in `transformers`.
REQUIRE_TOOLS = (
    "CohereForAI-c4ai-command-r-plus-tool_use.jinja",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja",
    "fireworks-ai-llama-3-firefunction-v2.jinja",
)


def template_names() -> list[str]:
    folder = cached_folder("chat-templates")
    return sorted(file.name for file in folder.iterdir()) if folder else [""]


def with_tiny_llm(template: str, **variables) -> str:
    return render_template(template, CHAT, **variables)


def with_transformers(template: str, **variables) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    ((text,), _) = render_jinja_template([CHAT], chat_template=template, **variables)
    return text


def assert_same_text(template: str, prompt: bool) -> str:
    """Asserts equal texts, or equal names and messages of exceptions; returns them."""
    texts = []
    for render in (with_tiny_llm, with_transformers):
        try:
            variables = {**VARIABLES, "add_generation_prompt": prompt, "documents": None}
            texts.append(render(template, **variables))
        except (TemplateError, TypeError) as error:
            texts.append(f"{type(error).__name__}: {error}")
    assert texts[0] == texts[1]
    return texts[0]


@pytest.mark.parametrize("name", template_names())
def test_plain_chat(name):
    template = Path(artifact_folder("chat-templates"), name).read_text(encoding="utf-8")
    for prompt in (True, False):
        assert "Why? 🙂" in assert_same_text(template, prompt) or name in REQUIRE_TOOLS


def test_generation_blocks():
    """TRL marks the assistant's text in its training templates."""
    template = Path(artifact_folder("chat-templates"), "Qwen-Qwen3-0.6B.jinja").read_text()
    block = "{%- generation %}{{- content }}{%- endgeneration %}"
    assert_same_text(template.replace("{{- content }}", block), True)
