"""Official chat templates: every message sequence that clients send is rendered completely.

Conversations are in the notation of `tests/engine/inputs/conversations.py`.
"""

import fnmatch
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.engine.inputs.conversations import conversation, markers
from tests.support import function_tool, object_schema
from tiny_llm import UserError
from tiny_llm.engine.inputs.chat_template import render_chat
from tiny_llm.models import load_weights
from tiny_llm.server.protocol.prompts import PromptRenderer
from tools.real_artifacts import cached_folder

# Templates of the model families that tiny-llm runs.
FAMILIES = (
    *("*Qwen*", "*Llama*", "*llama-3*", "*istral*", "*Hermes*", "*DeepSeek-R1*", "*deepseek-r1*"),
    *("*SmolLM3*", "Bielik*", "meetkai*", "*MiniCPM5*", "*gemma-4*", "*gpt-oss*"),
)
# Sequences by the clients that send them.
SEQUENCES = {
    "plain chat": ("u", "su", "uau", "suauau"),
    "tool results": ("suct", "suctau", "suctctau", "umt", "sumtmtau"),
    "parallel tool results": ("suptt", "supttau", "uptt"),
    "Codex": ("sduu", "sduumt", "sduumtmta", "sduuaduu", "sduupttad", "sduumtauu"),
    "Claude Code": ("sus", "susmt", "susmtsmta", "sumtu", "susauus", "susmtauumtu"),
    "LangChain": ("ssu", "suasu", "usu", "suctsau"),
    "AI SDK": ("suctau", "dsu", "suad", "udau"),
    "consecutive users": ("uu", "suuau", "uauu"),
    "consecutive assistants": ("uaau", "uactau"),
    "user text after a tool result": ("uctu", "uctuau", "upttu"),
    "assistant first": ("au", "sau", "saua"),
    "system only": ("s", "d", "ss"),
    "empty answer": ("ueu",),
}
PARAMETERS = object_schema(x={"type": "string", "description": "Text."})
TOOL = function_tool("f", PARAMETERS, description="Runs f.")
# Templates that drop an assistant's text beside tool calls, and reject it as a separate message;
# or, like gpt-oss's, render it as reasoning, and only until the next answer.
DROP_TEXT_WITH_CALLS = ("Mistral-Small-3.2*", "mistralai-Mistral-Nemo*", "*gpt-oss*")
# Why a template rejects every conversation, with and without tools or in one of the cases.
ONLY_WITH_TOOLS = "'NoneType' object is not iterable"
REFUSALS = {
    ("Hermes-2-Pro", False): ONLY_WITH_TOOLS,
    ("Hermes-3", False): ONLY_WITH_TOOLS,
    ("llama-cpp-deepseek-r1", True): "Object of type generator is not JSON serializable",
    ("firefunction", False): "'functions' is undefined",  # a variable of Fireworks' API
    ("firefunction", True): "'functions' is undefined",
}


def template_files() -> list[Path]:
    folder = cached_folder("chat-templates")
    return sorted(folder.glob("*.jinja")) if folder is not None else []


def refusal_of(name: str, has_tools: bool) -> str | None:
    given = REFUSALS.items()
    return next((why for (part, tools), why in given if part in name and tools == has_tools), None)


def is_one_of(name: str, patterns: Any) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


RUN, OTHERS = [], []
for file in template_files():
    (RUN if is_one_of(file.stem, FAMILIES) else OTHERS).append(pytest.param(file, id=file.stem))


@dataclass
class RecordingTokenizer:
    """The demo's tokenizer with another template; records what the template receives."""

    chat_template: str
    has_chat_template: bool = True
    received: tuple[Any, dict[str, Any]] = ((), {})
    _tokenizer: Any = field(default_factory=lambda: load_weights("demo")[1])

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        options = {"bos_token": "<bos>", "eos_token": "<eos>", **options}
        self.received = messages, options
        self._tokenizer.chat_template = self.chat_template
        return self._tokenizer.apply_chat_template(messages, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def transformers_text(tokenizer: RecordingTokenizer) -> str:
    """What transformers renders from the messages that the template last received."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    messages, options = tokenizer.received
    options = {**options, "chat_template": tokenizer.chat_template}
    del options["tokenize"]
    texts, _ = utils.render_jinja_template([list(messages)], **options)
    return texts[0]


def expected_texts(name: str, words: str) -> list[str]:
    texts = markers(conversation(words))
    if is_one_of(name, DROP_TEXT_WITH_CALLS):
        dropped = (index for index, kind in enumerate(words) if kind == "m")
        merged = (index for index in range(len(words)) if words[index : index + 2] == "ac")
        numbers = {*dropped, *merged}
        texts = [text for text in texts if text[0] == "x" or int(text[1:]) not in numbers]
    return texts


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["", "tools"])
@pytest.mark.parametrize("file", RUN)
def test_all_texts_are_in_the_prompt(file, tools):
    tokenizer = RecordingTokenizer(file.read_text())
    refusal = refusal_of(file.stem, bool(tools))
    faults = []
    for client, sequences in SEQUENCES.items():
        for words in sequences:
            for thinking in (False, True):
                given = conversation(words)
                try:
                    text = render_chat(tokenizer, given, tools, {"enable_thinking": thinking})
                except UserError as error:
                    if refusal is None or refusal not in str(error):
                        faults.append(f"{client} {words}: {error}")
                    with pytest.raises(Exception, match="."):
                        transformers_text(tokenizer)
                    continue
                assert refusal is None, f"{words} is accepted; remove the refusal"
                positions = [text.find(each) for each in expected_texts(file.stem, words)]
                # Parallel calls may be split, so that results come between them.
                if -1 in positions or ("p" not in words and positions != sorted(positions)):
                    faults.append(f"{client} {words}: texts missing or in another order: {text}")
                assert text == transformers_text(tokenizer), words
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("file", RUN)
def test_prompt_of_a_continued_message_ends_with_it(file):
    prompts = PromptRenderer(RecordingTokenizer(file.read_text()))
    prompts.max_tokens = 100_000
    tools = [TOOL] if refusal_of(file.stem, False) else None
    if tools and refusal_of(file.stem, True):
        pytest.skip("the template rejects every conversation")
    for words in ("ua", "sua", "suaua", "suctaua", "suuaa"):
        for ending in ("|", "<", "it is"):
            messages = conversation(words)
            messages[-1]["content"] += ending
            prompt = prompts.encode_chat(messages, tools, {}, continue_final_message=True)
            assert prompts.decode(prompt.token_ids).endswith(messages[-1]["content"])


def test_history_of_gpt_oss(artifact):
    """Reasoning is kept within a tool loop, with the text beside calls, until the next answer."""
    template = artifact("chat-templates") / "openai-gpt-oss-120b.jinja"
    tokenizer = RecordingTokenizer(template.read_text())
    given = conversation("umtat")
    given[1] |= {"reasoning_content": "I think."}
    calls_only = [function_tool("f", {})]  # without a description
    text = render_chat(tokenizer, given[:3], calls_only, {"reasoning_effort": "minimal"})
    thought = f"<|channel|>analysis<|message|>I think.\n\n{given[1]['content']}<|end|>"
    assert "Reasoning: low" in text
    assert f"{thought}<|start|>assistant to=functions.f<|channel|>commentary json" in text
    assert text.endswith("<|start|>assistant")
    answered = render_chat(tokenizer, [*given[:4], {"role": "user", "content": "Next."}], [TOOL])
    assert "analysis<|message|>" not in answered
    assert f"<|channel|>final<|message|>{given[3]['content']}<|end|>" in answered


@pytest.mark.parametrize("words", ["sduuctmtpttct", "susmtsmtct"])
@pytest.mark.parametrize("file", RUN)
def test_tool_loop_only_extends_the_prompt(file, words):
    if refusal_of(file.stem, True):
        pytest.skip("the template rejects every conversation with tools")
    tokenizer = RecordingTokenizer(file.read_text())
    previous = ""
    for length in range(3, len(words) + 1):
        if words[length : length + 1] in "cmp":  # the end of the prompt, or before the next call
            given = conversation(words[:length])
            text = render_chat(tokenizer, given, [TOOL], add_generation_prompt=False)
            assert text.startswith(previous)
            last = given[-1]["content"]
            previous = text[: text.rindex(last) + len(last)]


@pytest.mark.parametrize("file", OTHERS)
def test_other_templates_render_or_give_a_reason(file):
    tokenizer = RecordingTokenizer(file.read_text())
    reasons = []
    for tools in (None, [TOOL]):
        for words in {words for sequences in SEQUENCES.values() for words in sequences}:
            try:
                render_chat(tokenizer, conversation(words), tools)
            except UserError as error:
                reasons.append(str(error))
    assert all(reason.startswith("the chat template failed: ") for reason in reasons)
