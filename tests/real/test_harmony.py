"""Harmony outputs, parsed like `openai-harmony` does, with gpt-oss's official tokenizer.

Skipped unless `openai-harmony` is installed. Its vocabulary file is written from the tokenizer.
"""

import base64
import json
import os
import random
from typing import Any

import pytest

from tests.engine.tool_calls.test_harmony import ADD, STOP, parse
from tiny_llm.models.tokenizer.loader import open_tokenizer
from tiny_llm.models.tokenizer.tokenizer import decode_byte_level

WORDS = ["a", " sum", "\n", " <", "|>", "é", " {", "}", '"', " to=functions.add", "  x", "final"]
CALLS = [
    "<|channel|>commentary to=functions.add <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.add json<|message|>",
    " to=functions.add<|channel|>commentary <|constrain|>json<|message|>",
]


@pytest.fixture(scope="module")
def encoding(artifact, tmp_path_factory) -> Any:
    harmony = pytest.importorskip("openai_harmony")
    tokenizer = json.loads((artifact("tokenizer-gptoss") / "tokenizer.json").read_text())
    ranks = sorted(tokenizer["model"]["vocab"].items(), key=lambda pair: pair[1])
    folder = tmp_path_factory.mktemp("vocabulary")
    lines = [f"{base64.b64encode(decode_byte_level(t)).decode()} {i}\n" for t, i in ranks]
    (folder / "o200k_base.tiktoken").write_text("".join(lines))
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(folder)
    return harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def theirs(encoding: Any, ids: list[int]) -> tuple[str, str, list[tuple[str, Any]]]:
    """openai-harmony's messages as (reasoning, content, calls)."""
    reasoning, content, calls = [], [], []
    role = pytest.importorskip("openai_harmony").Role.ASSISTANT
    for message in encoding.parse_messages_from_completion_tokens(ids, role):
        text = message.content[0].text.strip()
        if (message.recipient or "").startswith("functions."):
            calls.append((message.recipient.removeprefix("functions."), json.loads(text)))
        elif message.channel in ("final", "commentary"):
            content.append(text)
        else:
            reasoning.append(text)
    parts = ("\n\n".join(filter(None, each)) for each in (reasoning, content))
    return (*parts, calls)


def random_output(rng: random.Random) -> str:
    def text() -> str:
        return "".join(rng.choices(WORDS, k=rng.randrange(6)))

    messages = [f"<|channel|>analysis<|message|>{text()}<|end|>" for _ in range(rng.randrange(3))]
    if rng.random() < 0.3:
        messages.append(f"<|channel|>commentary<|message|>{text()}<|end|>")
    if rng.random() < 0.5:
        messages.append(f'{rng.choice(CALLS)}{{"a": {rng.randrange(9)}}}<|call|>')
    else:
        messages.append(f"<|channel|>final<|message|>{text()}<|return|>")
    return "<|start|>assistant".join(messages)


def test_random_outputs(encoding, artifact):
    tokenizer = open_tokenizer(artifact("tokenizer-gptoss"), {"eos_token_id": 200_002})
    for seed in range(200):
        output = random_output(random.Random(seed))
        ids = tokenizer.encode(output, add_special_tokens=False)
        assert ids == encoding.encode(output, allowed_special="all")
        for size in (1, 7, 1000):
            assert parse(output, size, tools=(ADD, STOP)) == theirs(encoding, ids), output


def test_stop_tokens(encoding, artifact):
    backend = open_tokenizer(artifact("tokenizer-gptoss"), {"eos_token_id": 0}).backend_tokenizer
    stops = encoding.stop_tokens_for_assistant_actions()
    assert sorted(map(backend.id_to_token, stops)) == ["<|call|>", "<|return|>"]
