"""Hybrid models for tests: random checkpoints, engines, transcripts."""

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from tests.models.support import HYBRID, write_family
from tests.support import function_tool, object_schema
from tiny_llm import LLM, SamplingParams
from tiny_llm.demo import TARGET_PATH
from tiny_llm.engine.execution.kv_memory import KvMemory, plan_kv_memory
from tiny_llm.engine.inputs.prompts import ChatOptions, encode_prompt

EOS = 4093

CONFIG: dict[str, Any] = {
    **HYBRID,
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 96,
    "full_attention_interval": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "max_position_embeddings": 16_384,
    "torch_dtype": "bfloat16",
    "eos_token_id": EOS,
}
# Keys and values of 1 layer, 2 heads of size 32, in bfloat16.
KV_BYTES_PER_TOKEN = 2 * 1 * 2 * 32 * 2
# Queries and keys of 2 heads of size 8, values of 4 heads of size 16.
CONV_CHANNELS = 2 * 2 * 8 + 4 * 16
# In 3 layers: the last 3 inputs of the convolution in bfloat16, and 4 states of 8×16 in float32.
STATE_BYTES = 3 * (3 * CONV_CHANNELS * 2 + 4 * 8 * 16 * 4)


def write_hybrid(folder: Path, mtp: bool = False, **changes: Any) -> Path:
    """Writes a random checkpoint with the demo tokenizer and config `changes`."""
    write_family(folder, {**CONFIG, **changes}, mtp)
    for file in TARGET_PATH.iterdir():
        if "token" in file.name or file.name == "chat_template.jinja":
            shutil.copy(file, folder)
    return folder


def build(model: Any, tokens: int = 2048, slots: int = 12, **options: Any) -> LLM:
    """Builds an engine with pages for `tokens` tokens and `slots` state slots; 0 without states."""
    num_pages = tokens // options.get("block_size", 32)
    with kv_memory_of(num_pages, slots):
        return LLM(model, **options)


def kv_memory_of(num_pages: int, num_state_slots: int = 0) -> Any:
    """Replaces an engine's number of blocks and state slots, while it is built."""

    def plan(*args: Any) -> KvMemory:
        memory = plan_kv_memory(*args)
        block_pages = sum(group.num_pages for group in memory.groups)
        sizes = {"num_state_slots": num_state_slots, "state_slot_pages": 0}
        return replace(memory, num_pages=num_pages * block_pages, **sizes)

    return mock.patch("tiny_llm.engine.llm.plan_kv_memory", plan)


FILLER = "The trams of Lenmora are yellow. A festival takes place in September. "
QUERY = object_schema(query={"type": "string"})
TOOLS = [function_tool("search", QUERY, description="Searches the files.")]
Turn = tuple[list[dict[str, Any]], str]  # messages and the model's reply


def conversation(num_turns: int, thinking: bool) -> Iterator[Turn]:
    """Turns of a chat. The template drops the reasoning of earlier turns."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": f"Be brief. {FILLER * 3}"}]
    for turn in range(num_turns):
        messages.append({"role": "user", "content": f"Question {turn}: {FILLER * (1 + turn % 3)}"})
        output_of_turn = f"Answer {turn}: {FILLER * (1 + turn % 4)}"
        reasoning = f"<think>\nI should be brief. {FILLER}\n</think>\n\n" if thinking else ""
        yield list(messages), reasoning + output_of_turn
        messages.append({"role": "assistant", "content": output_of_turn})


def agent_transcript(num_turns: int) -> Iterator[Turn]:
    """Turns of an agent: one question, then tool calls and their results."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": f"You fix programs. {FILLER * 6}"},
        {"role": "user", "content": f"Fix the tests. {FILLER}"},
    ]
    for turn in range(num_turns):
        call = {"name": "search", "arguments": {"query": f"file {turn}"}}
        yield list(messages), f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
        calls = [{"id": str(turn), "type": "function", "function": call}]
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        result = f"Result {turn}: {FILLER * (1 + turn % 3)}"
        messages.append({"role": "tool", "tool_call_id": str(turn), "content": result})


def run_transcript(llm: LLM, turns: Iterable[Turn], thinking: bool) -> list[tuple[int, int]]:
    """Serves turns with scripted replies; returns their prompt and cached tokens."""
    outputs: dict[int, int] = {}  # forced token by position
    original = llm.runner.target.logits

    def scripted(spans, rows):
        logits = original(spans, rows)
        for index, row in enumerate(rows):
            position = spans[0].start + row + 1
            if position in outputs:
                logits[index, outputs[position]] = 1e6
        return logits

    counts = []
    with mock.patch.object(llm.runner.target, "logits", scripted):
        for messages, output in turns:
            tools = TOOLS if "<tool_call>" in output else None
            chat = ChatOptions(thinking, tools, None)
            prompt = encode_prompt(llm.tokenizer, messages, chat, llm.scheduler.config.max_seq_len)
            ids = [*llm.tokenizer.encode(output, add_special_tokens=False), EOS]
            outputs = {len(prompt) + index: token for index, token in enumerate(ids)}
            params = SamplingParams(temperature=0, max_tokens=len(ids))
            [output_of_turn] = llm.generate(
                [messages], params, enable_thinking=thinking, tools=tools
            )
            assert output_of_turn.token_ids == ids
            llm.scheduler.check_integrity()
            counts.append((len(prompt), output_of_turn.num_cached_tokens))
    return counts
