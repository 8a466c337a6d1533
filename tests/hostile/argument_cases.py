"""Invalid arguments, with words that the error must contain.

Each case calls a loaded model. An output with finish reason "error" counts as an exception.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tiny_llm import LLM, SamplingParams
from tiny_llm.errors import UserError

HUGE = 10**400  # exceeds the largest float
HUGER = 10**5000  # exceeds Python's limit for converting int to str
CHAT = {"role": "user", "content": "Why?"}


@dataclass(frozen=True)
class Case:
    """A call that must be rejected.

    Attributes:
        call: function that makes the call, given an `LLM` and its loaded model.
        words: texts that the error message must contain.
    """

    name: str
    call: Callable[[LLM, Any], Any]
    words: tuple[str, ...]


def parameter(name: str, value: Any, *words: str) -> Case:
    return Case(
        f"{name}={_format_value(value)}",
        lambda llm, _: _generate(llm, [1, 2], **{name: value}),
        (name, *words),
    )


def prompt(what: str, value: Any, *words: str) -> Case:
    return Case(f"prompt: {what}", lambda llm, _: _generate(llm, value), words)


def option(name: str, value: Any, *words: str) -> Case:
    return Case(
        f"{name}={_format_value(value)}", lambda _, model: LLM(model, **{name: value}), words
    )


def named_model(what: str, value: Any, *words: str) -> Case:
    return Case(f"model: {what}", lambda *_: LLM(value), words)


def _generate(llm: LLM, value: Any, **parameters: Any) -> None:
    outputs = llm.generate(value, SamplingParams(**{"max_tokens": 2, **parameters}))
    for output in outputs:
        if output.error is not None:
            raise UserError(output.error)


def _format_value(value: Any) -> str:
    try:
        return f"{value!r:.40}"
    except ValueError:
        return "thousands of digits"


PARAMETERS = [
    parameter("temperature", HUGE, "number ≥ 0"),
    parameter("temperature", HUGER, "thousands of digits"),
    parameter("temperature", -1, "number ≥ 0"),
    parameter("temperature", math.nan, "nan"),
    parameter("temperature", math.inf, "inf"),
    parameter("temperature", "1", "'1'"),
    parameter("temperature", None, "None"),
    parameter("temperature", [1], "[1]"),
    parameter("temperature", 1j, "1j"),
    parameter("temperature", Decimal(1), "Decimal"),
    parameter("temperature", True, "True"),
    parameter("top_p", Fraction(3, 2), "(0, 1]"),
    parameter("top_p", 0, "(0, 1]"),
    parameter("top_p", HUGE, "(0, 1]"),
    parameter("top_k", 1.0, "at least"),
    parameter("top_k", -2, "at least"),
    parameter("min_p", -0.1, "[0, 1]"),
    parameter("repetition_penalty", HUGE, "number > 0"),
    parameter("repetition_penalty", 0, "number > 0"),
    parameter("presence_penalty", 3, "[-2, 2]"),
    parameter("frequency_penalty", HUGE, "[-2, 2]"),
    parameter("seed", 10**30, "2**64"),
    parameter("seed", -2, "at least"),
    parameter("seed", 1.5, "at least"),
    parameter("n", 10_000, "4096"),
    parameter("n", 10**9, "4096"),
    parameter("n", HUGER, "4096"),
    parameter("n", 0, "at least"),
    parameter("n", 2.0, "at least"),
    parameter("max_tokens", 0, "at least"),
    parameter("max_tokens", HUGER, "thousands of digits", "context"),
    parameter("max_tokens", 10**30, "context"),
    parameter("max_tokens", "5", "at least"),
    parameter("min_tokens", 10**30, "at most max_tokens"),
    parameter("logprobs", -1, "at least"),
    parameter("prompt_logprobs", 1.5, "at least"),
    parameter("stop", [""], "non-empty string"),
    parameter("stop", 5, "non-empty string"),
    parameter("stop", ["a"] * 200_000, "at most"),
    parameter("stop_token_ids", [True], "token ids"),
    parameter("stop_token_ids", ["a"], "token ids"),
    parameter("stop_token_ids", range(10**12), "at most"),
    parameter("logit_bias", [1], "must map"),
    parameter("logit_bias", {True: 1}, "got True"),
    parameter("logit_bias", {10**30: 1}, "0 to 4095"),
    parameter("logit_bias", {1: HUGE}, "[-100, 100]"),
    parameter("ignore_eos", "yes", "True or False"),
    parameter("clamp_max_tokens", 5, "True or False"),
    parameter("structured_outputs", {"json": "{}"}, "StructuredOutputs"),
]

PROMPTS = [
    prompt("a list among token ids", [1, [], 2], "token id, got []"),
    prompt("a string among token ids", [1, "a"], "token id, got 'a'"),
    prompt("None among token ids", [1, None], "token id, got None"),
    prompt("a fraction among token ids", [1, 2.0], "token id, got 2.0"),
    prompt("a boolean token id", [True, 2], "token id, got True"),
    prompt("a negative token id", [-1], "0 to 4095"),
    prompt("a huge token id", [HUGER], "0 to 4095"),
    prompt("an empty string", "", "empty"),
    prompt("no tokens", [[]], "empty"),
    prompt("None", None, "a prompt must be"),
    prompt("bytes", b"abc", "a prompt must be"),
    prompt("a set", {1, 2}, "a prompt must be"),
    prompt("a bare message", CHAT, "a prompt must be"),
    prompt("nested lists", [[[1]]], "a prompt must be"),
    prompt("an unpaired surrogate", "\ud800", "unpaired surrogate"),
    prompt("a message without content", [{"role": "user"}], "content"),
    prompt("a message with numeric content", [CHAT | {"content": 5}], "content must be"),
    prompt("a message that is a number", [CHAT, 5], "messages[1]"),
    prompt("a numeric role", [CHAT | {"role": 5}], "role"),
    prompt("20 MB", "hello " * 3_400_000, "20,400,000 characters", "context"),
    prompt("a chat of 20 MB", [CHAT | {"content": "why " * 5_000_000}], "characters"),
    prompt("a million tokens", [1] * 1_000_000, "context"),
]

OPTIONS = [
    option("kv_cache_bytes", 2e18, "this machine's memory"),
    option("kv_cache_bytes", HUGER, "this machine's memory"),
    option("kv_cache_bytes", math.inf, "at least"),
    option("kv_cache_bytes", math.nan, "at least"),
    option("kv_cache_bytes", "1 GB", "at least"),
    option("kv_cache_bytes", 1, "a page"),
    option("block_size", 0, "at least"),
    option("block_size", 10**9, "a page"),
    option("max_num_seqs", 10**30, "max_num_batched_tokens"),
    option("max_num_batched_tokens", 1, "max_num_seqs"),
    option("max_queue", -1, "at least"),
    option("num_drafts", 3, "requires draft_model"),
    option("speculative", "magic", "ngram"),
    option("speculative", 5, "ngram"),
    option("load_format", "magic", "'auto' or 'dummy'"),
    option("tool_call_parser", "xml", "'auto', 'hermes'"),
    option("enable_prefix_caching", "no", "True or False"),
    option("listener", 5, "callable"),
    option("draft_model", 5, "pass a name"),
    named_model("a number", 5, "pass a name"),
    named_model("no name", "", "unknown model"),
    named_model("a NUL", "a\0b", "unknown model"),
    named_model("a long name", "x" * 100_000, "unknown model"),
    named_model("a pair of numbers", (1, 2), "pass a name"),
    named_model("bytes", b"demo", "pass a name"),
]

ARGUMENTS = [*PARAMETERS, *PROMPTS, *OPTIONS]
