"""Probes of what chat templates accept."""

from dataclasses import asdict

import pytest

from tests.engine.inputs.conversations import conversation, tokenizer_with
from tiny_llm import UserError
from tiny_llm.engine.inputs.chat_template import render_chat, template_traits
from tiny_llm.engine.inputs.fit_messages import EFFORTS, TemplateTraits

BODY = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls %}{{ call.function.arguments.x }}{% endfor %}. {% endfor %}"
)
TEXT = "{% for m in messages %}{{ m.role }}: {{ m.content }}. {% endfor %}"


def rejected(template, has_tools=False):
    traits = asdict(template_traits(tokenizer_with(template), has_tools))
    assert traits.pop("efforts") == ()
    return {name for name, value in traits.items() if value != getattr(TemplateTraits(), name)}


def raise_if(condition, reason="No."):
    return f"{{% if {condition} %}}{{{{ raise_exception('{reason}') }}}}{{% endif %}}"


def raise_for_each(condition):
    return "{% for m in messages %}" + raise_if(condition) + "{% endfor %}"


LATE = raise_for_each("m.role == 'system' and not loop.first")
ALTERNATING = raise_for_each("(m.role == 'user') != (loop.index0 % 2 == 0)")
USERLESS = raise_if("messages | selectattr('role', 'equalto', 'user') | list == []")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (TEXT, set()),
        (LATE + TEXT, {"second_system", "late_system"}),
        # Silently dropped or moved messages count as rejected.
        (TEXT.replace("messages", "messages if m.role != 'system'"), {"system", "no_user"}),
        (
            ALTERNATING + TEXT,
            {"system", "second_system", "consecutive_users", "consecutive_assistants"}
            | {"assistant_first", "user_after_tool", "parallel_calls", "no_user"},
        ),
        (raise_if("messages[0].role == 'assistant'") + TEXT, {"assistant_first"}),
        (USERLESS + TEXT, {"no_user"}),
    ],
)
def test_rejected_sequences_are_found(template, expected):
    assert expected <= rejected(template)


def test_fitted_conversation_is_rendered():
    text = render_chat(tokenizer_with(LATE + TEXT), conversation("s s u a s u"))
    assert text == "system: s0\n\ns1. user: u2. assistant: a3. user: s4. user: u5. "


def test_template_that_rejects_everything_gives_its_own_reason():
    tokenizer = tokenizer_with(raise_if("true", "Only on Sundays.") + TEXT)
    assert template_traits(tokenizer, False) == TemplateTraits()
    with pytest.raises(UserError, match=r"^the chat template failed: Only on Sundays\.$"):
        render_chat(tokenizer, conversation("u"))


def test_probes_are_rendered_once(monkeypatch):
    tokenizer = tokenizer_with(TEXT + "once")
    render_chat(tokenizer, conversation("u"))
    rendered = []
    apply = tokenizer.apply_chat_template
    monkeypatch.setattr(
        tokenizer,
        "apply_chat_template",
        lambda *args, **options: rendered.append(args) or apply(*args, **options),
    )
    render_chat(tokenizer, conversation("u"))
    assert len(rendered) == 1


EFFORT_LEVELS = raise_if("reasoning_effort not in [none, 'low', 'high']", "Unknown effort.")


@pytest.mark.parametrize(
    ("template", "sent"),
    [
        ("{{ reasoning_effort }}|" + TEXT, {level: level for level in (*EFFORTS, "extreme")}),
        (
            "{% if reasoning_effort is not defined %}{% set reasoning_effort = none %}{% endif %}"
            + EFFORT_LEVELS
            + "{{ reasoning_effort }}|"
            + TEXT,
            {"none": "low", "minimal": "low", "low": "low", "medium": "high", "max": "high"},
        ),
        ("|" + TEXT, {"high": ""}),
    ],
)
def test_effort_becomes_the_closest_accepted_level(template, sent):
    tokenizer = tokenizer_with(template)
    for effort, level in sent.items():
        text = render_chat(tokenizer, conversation("u"), variables={"reasoning_effort": effort})
        assert text.partition("|")[0] == level
