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


def rendered(render, template: str, **variables) -> str:
    """The text, or the exception's name and message."""
    try:
        return render(template, **VARIABLES, **variables)
    except (TemplateError, TypeError) as error:
        return f"{type(error).__name__}: {error}"


def render_with_transformers(template: str, **variables) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    ((text,), _) = render_jinja_template([CHAT], chat_template=template, **variables)
    return text


@pytest.mark.parametrize("name", template_names())
def test_plain_chat(name):
    template = Path(artifact_folder("chat-templates"), name).read_text(encoding="utf-8")
    for prompt in (True, False):
        arguments = {"template": template, "add_generation_prompt": prompt, "documents": None}
        ours = rendered(
            lambda template, **given: render_template(template, CHAT, **given), **arguments
        )
        assert ours == rendered(render_with_transformers, **arguments)
        assert "Why? 🙂" in ours or name in REQUIRE_TOOLS


def test_generation_blocks():
    """TRL marks the assistant's text in its training templates."""
    template = Path(artifact_folder("chat-templates"), "Qwen-Qwen3-0.6B.jinja").read_text()
    marked = template.replace(
        "{{- content }}", "{%- generation %}{{- content }}{%- endgeneration %}"
    )
    arguments = {"template": marked, "add_generation_prompt": True, "documents": None}
    ours = rendered(lambda template, **given: render_template(template, CHAT, **given), **arguments)
    assert ours == rendered(render_with_transformers, **arguments)
