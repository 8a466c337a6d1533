"""Grammars whose literal text looks like special tokens."""

import json

import pytest

from tiny_llm import LLM, SamplingParams, StructuredOutputs
from tiny_llm.engine.spec_decode.draft_tokens import forced_tokens
from tiny_llm.engine.structured_output.compiler import GrammarCompiler, special_token_ids

pytest.importorskip("llguidance")

TOKENS = ["<think>", "</think>", "<|im_end|>", "<|im_start|>", "<|endoftext|>"]
CASES = [
    (StructuredOutputs(choice=["a <think> b"]), "a <think> b"),
    (StructuredOutputs(choice=["<|im_end|>"]), "<|im_end|>"),
    (StructuredOutputs(regex=r"x<\|im_end\|>[y]"), "x<|im_end|>y"),
    (StructuredOutputs(json={"const": "<|endoftext|></think>"}), '"<|endoftext|></think>"'),
    (StructuredOutputs(grammar='start: "<think>" <|im_end|>'), "<think>"),
]
PROPERTY = {"properties": {"<|im_start|>": {"const": 1}}, "required": ["<|im_start|>"]}


@pytest.mark.parametrize(("constraint", "text"), CASES)
@pytest.mark.parametrize("speculative", [None, "ngram"])
def test_text_of_special_tokens(demo, constraint, text, speculative):
    llm = LLM(demo, kv_cache_bytes=2**24, speculative=speculative)
    params = SamplingParams(temperature=0, max_tokens=40, structured_outputs=constraint)
    # The n-gram proposer drafts special tokens that occur in the prompt.
    other = SamplingParams(temperature=0, max_tokens=40)
    [output, unconstrained] = llm.generate([f"x{''.join(TOKENS)} a <think> b"] * 2, [params, other])
    assert (output.error, output.finish_reason, output.text) == (None, "stop", text)
    assert unconstrained.error is None
    ends = llm.tokenizer.eos_token_ids
    special = set(special_token_ids(llm.tokenizer.backend_tokenizer))
    assert not (special - ends) & set(output.token_ids)


def test_property_name(llm):
    constraint = StructuredOutputs(json={"type": "object", **PROPERTY})
    params = SamplingParams(temperature=0, max_tokens=60, structured_outputs=constraint)
    [output] = llm.generate("x", params)
    assert json.loads(output.text) == {"<|im_start|>": 1}


def test_special_tokens_by_name(llm):
    """A grammar can name a special token, as opposed to text that looks like it."""
    grammar = GrammarCompiler(llm.tokenizer, llm.vocab_size).compile(
        StructuredOutputs(grammar='start: <think> "<think>"')
    )
    token = llm.tokenizer.backend_tokenizer.token_to_id("<think>")
    forced = forced_tokens(grammar.matcher)
    assert forced[0] == token
    assert token not in forced[1:]
