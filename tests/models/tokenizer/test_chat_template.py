"""Chat template rendering: Jinja's sandbox, `transformers`' extensions and data."""

import pytest
from jinja2 import TemplateError

from tiny_llm.errors import UserError
from tiny_llm.models.tokenizer.chat_template import _compile, read_template_file, render_template

MESSAGES = [{"role": "user", "content": "Why? é\n😀"}, {"role": "assistant", "content": None}]

REJECTED = {
    "{{ ''.__class__.__mro__[1].__subclasses__() }}": "unsafe",
    "{{ messages.append(1) }}": "unsafe",
    "{% include '/etc/passwd' %}": "no loader",
    "{% for i in range(10 ** 9) %}{% endfor %}": "range",
    "{{ raise_exception('roles must alternate') }}": "roles must alternate",
    "{% if": "unexpected",
    "{{ '\\ud800' }}": "unpaired surrogate",
}


@pytest.mark.parametrize("template", REJECTED)
def test_template_cannot_leave_the_sandbox(template):
    with pytest.raises((TemplateError, OverflowError, TypeError, ValueError)) as caught:
        render_template(template, MESSAGES)
    assert REJECTED[template] in str(caught.value).lower()
    assert render_template("{{ messages[0].role }}", MESSAGES) == "user"


def test_values_are_plain_json():
    """A template may call methods, so objects must not reach it."""

    class Text(str):
        def write(self):
            return "ran"

    assert render_template("{{ messages[0].content.write }}", [{"content": Text("a")}]) == ""
    with pytest.raises(TypeError, match="not JSON serializable"):
        render_template("a", [], file=object())


def test_generation_block_renders_its_body():
    template = """
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- generation %}{{ message.content }}{{ suffix }}{%- endgeneration %}
    {%- else %}{{ message.content }}: {% endif %}
{%- endfor %}"""
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    assert render_template(template, messages, suffix="!") == "q: a!"


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_is_found_under_every_name(name):
    template = "{{ messages[0].reasoning_content }} {{ messages[0].thinking }}"
    assert render_template(template, [{"role": "assistant", name: "Hm."}]) == "Hm. Hm."


def test_templates_are_compiled_once():
    template = "{{ messages | length }} of a kind"
    render_template(template, MESSAGES)
    assert _compile(template) is _compile(template)


def test_template_file(tmp_path):
    file = tmp_path / "template.jinja"
    loop = "{% for m in messages %}{% break %}{% endfor %}"
    file.write_text("{% generation %}a{% endgeneration %}" + loop)
    assert read_template_file(file) == file.read_text()
    file.write_text("a\n{% if")
    with pytest.raises(UserError, match=r"is not valid Jinja \(line 2: "):
        read_template_file(file)
