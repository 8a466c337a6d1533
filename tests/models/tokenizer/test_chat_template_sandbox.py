"""The sandbox does not change chat template output; it stops hostile ones."""

import threading
from dataclasses import replace

import pytest

from tests.engine.support import chat
from tiny_llm import LLM, SamplingParams
from tiny_llm.models import load_weights
from tiny_llm.models.tokenizer.chat_template import RENDERER
from tiny_llm.models.tokenizer.chat_template_handler import render_chat

MESSAGES = [{"role": "user", "content": "Why? é\n😀"}, {"role": "assistant", "content": None}]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }} {{ tools | tojson }}.{% endfor %}"


@pytest.fixture
def process():
    process = replace(RENDERER, seconds=30.0, max_bytes=10_000, max_memory=2**28)
    yield process
    process.close()


def render(process, template, messages, **variables):
    payload = {"template": template, "messages": messages, "variables": variables}
    return process.request(payload)["text"]


def test_sandboxed_output_matches(process):
    for rest in ({"tools": None}, {"tools": [{"name": "f"}]}):
        assert render(process, TEMPLATE, MESSAGES, **rest) == render_chat(
            TEMPLATE, MESSAGES, **rest
        )


HOSTILE = {
    "time": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "memory": "{{ 'a' * 10 ** 10 }}",
    "growth": (
        "{% set n = namespace(x='abcdefgh') %}"
        "{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
    ),
    "text": "{% for i in range(99999) %}abcdefgh{% endfor %}",
    "insides": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "refusal": "{{ raise_exception('roles must alternate') }}",
}
REASONS = {
    "time": "longer than 1 second",
    "memory": "too much memory",
    "growth": "too much memory",
    "text": "more than 10,000 bytes",
    "insides": "unsafe",
    "refusal": "roles must alternate",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_template_is_stopped_and_the_next_one_renders(process, kind, monkeypatch):
    if kind == "time":
        monkeypatch.setattr(process, "seconds", 1.0)
    with pytest.raises(ValueError, match=REASONS[kind]):
        render(process, HOSTILE[kind], MESSAGES)
    monkeypatch.undo()
    assert render(process, "{{ messages[0].role }}", MESSAGES) == "user"


def test_killed_process_is_restarted(process):
    assert render(process, "a", []) == "a"
    process._process.kill()
    process._process.wait()
    assert render(process, "b", []) == "b"


def test_output_larger_than_a_pipe_buffer(process):
    text = "x" * 300_000
    process.max_bytes = 400_000
    assert render(process, "{{ messages[0].content }}", [{"content": text}]) == text


def test_concurrent_threads_are_serialized(process):
    actual = {}

    def render_number(number):
        actual[number] = render(process, "{{ number }}", [], number=number)

    threads = [threading.Thread(target=render_number, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert actual == {number: str(number) for number in range(8)}


def test_every_chat_is_sandboxed(monkeypatch):
    weights, tokenizer = load_weights("demo")
    llm = LLM((weights, tokenizer), kv_cache_bytes=2**22)
    ask = SamplingParams(temperature=0, max_tokens=2)
    with monkeypatch.context() as patch:
        patch.setattr(RENDERER, "seconds", 1.0)
        patch.setattr(tokenizer, "chat_template", HOSTILE["time"])
        [output] = llm.generate(chat("Why?"), ask)
    assert output.error == "the chat template failed: it took longer than 1 seconds."
    [output] = llm.generate(chat("Why?"), ask)
    variables = {"add_generation_prompt": True, "enable_thinking": False}
    expected = render_chat(tokenizer.chat_template, chat("Why?"), **variables)
    assert tokenizer.decode(output.prompt_token_ids) == expected
