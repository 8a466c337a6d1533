"""SmolLM2-135M-Instruct from its GGUF file: a real model through engine and server."""

import copy
import json
import math
import pydoc_data.topics
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import openai
import pytest

from tests.models.support import import_references
from tests.server.running_server import RunningServer
from tests.support import as_numpy
from tiny_llm import LLM, SamplingParams, load_weights
from tiny_llm.engine.execution.paged_model import Span, ragged_batch
from tiny_llm.kernels.prepack import copy_tree, row_major_layer
from tiny_llm.models.serving_model import serving_model

QUESTIONS = [
    "What is the capital of France?",
    "Name three primary colors.",
    "Write a haiku about the sea.",
    "What is 7 times 8?",
    "Explain what a prime number is.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
]
CHUNK, NUM_CHUNKS = 1024, 20  # tokens


@pytest.fixture(scope="module")
def file(artifact: Callable[[str], Path]) -> Path:
    (found,) = artifact("smollm2").glob("*.gguf")
    return found


@pytest.fixture(scope="module")
def model(file: Path) -> tuple[Any, Any]:
    return load_weights(str(file))


@pytest.fixture(scope="module")
def theirs(file: Path) -> Any:
    """The model in transformers, in float32, with weights dequantized by `gguf`."""
    torch, transformers = import_references()
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        tie_word_embeddings=True,
    )
    model = transformers.LlamaForCausalLM(config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            tensor = tensors[names.get_name(name, try_suffixes=(".weight",))]
            weight = gguf.dequantize(tensor.data, tensor.tensor_type)
            if ".q_proj." in name or ".k_proj." in name:  # a pair's rows are adjacent in GGUF
                weight = weight.reshape(-1, 32, 2, 576).swapaxes(1, 2)
            parameter.copy_(torch.tensor(weight.reshape(parameter.shape)))
    return model.eval()


def their_logits(model: Any, ids: list[int]) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def in_float32(weights: Any) -> Any:
    """A copy whose layers have dequantized float32 weights."""
    converted = copy_tree(weights)
    for layer in converted.modules():
        if "scales" not in layer:
            continue
        plain = row_major_layer(copy.copy(layer))
        scales, biases = plain.scales.astype(mx.float32), plain.biases.astype(mx.float32)
        layer.weight = mx.dequantize(plain.weight, scales, biases, plain.group_size, plain.bits)
        for name in ("scales", "biases"):
            del layer[name]
    return converted


def our_logits(model: Any, ids: list[int]) -> np.ndarray:
    """Logits of one sequence, prefilled in chunks."""
    storage, pages = model.create_paged_storage(16), array("i", range(16))
    rows = []
    for start in range(0, len(ids), 256):
        part = ids[start : start + 256]
        batch = ragged_batch([Span(part, start, pages, -1, [])], storage.layout, False)
        rows.append(as_numpy(model.ragged_logits(part, batch, range(len(part)), storage)))
    return np.concatenate(rows).astype(np.float32)


def chat_ids(tokenizer: Any, question: str) -> list[int]:
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)


def english_ids(tokenizer: Any) -> list[list[int]]:
    """Chunks of Python's documentation, which every machine with Python has."""
    topics = pydoc_data.topics.topics
    ids = tokenizer.encode("\n\n".join(topics[name] for name in sorted(topics)))
    return [ids[start : start + CHUNK] for start in range(0, CHUNK * NUM_CHUNKS, CHUNK)]


@pytest.mark.slow
def test_float32_logits_and_greedy_tokens_equal_transformers(model, theirs):
    weights, tokenizer = in_float32(model[0]), model[1]
    ours = serving_model("smollm2", weights)
    llm = LLM((weights, tokenizer))
    params = SamplingParams(temperature=0, max_tokens=24)
    prompts = [chat_ids(tokenizer, question) for question in QUESTIONS]
    for output in llm.generate(prompts, params, use_tqdm=False):
        assert output.error is None
        prompt, answer = output.prompt_token_ids, output.token_ids
        ids = [*prompt, *answer]
        expected = their_logits(theirs, ids)
        np.testing.assert_allclose(our_logits(ours, ids), expected, atol=1e-3)
        assert answer == expected[len(prompt) - 1 : -1].argmax(-1).tolist()


# Largest increase of the perplexity over transformers' in float32.
MODES: dict[str, tuple[dict[str, Any], float]] = {
    "float16": ({}, 0.001),
    "int8 KV": ({"kv_cache_dtype": "int8"}, 0.004),
    "8-bit activations": ({"activation_bits": 8}, 0.008),
    "both": ({"kv_cache_dtype": "int8", "activation_bits": 8}, 0.01),
}


@pytest.fixture(scope="module")
def expected_perplexity(model, theirs) -> float:
    return perplexity(lambda ids: their_logits(theirs, ids), english_ids(model[1]))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_perplexity(model, expected_perplexity, capsys, mode):
    """Of 20,480 tokens of English; takes minutes, most of them in transformers."""
    options, limit = MODES[mode]
    ours = serving_model("smollm2", model[0], **options)
    actual = perplexity(lambda ids: our_logits(ours, ids), english_ids(model[1]))
    change = actual / expected_perplexity - 1
    with capsys.disabled():
        print(f"\nperplexity, {mode}: {actual:.4f} ({change:+.3%} of {expected_perplexity:.4f})")
    assert abs(change) < limit


def perplexity(logits: Callable[[list[int]], np.ndarray], chunks: list[list[int]]) -> float:
    total, count = 0.0, 0
    for ids in chunks:
        rows = mx.array(logits(ids)[:-1])
        targets = mx.array(ids[1:])[:, None]
        chosen = mx.take_along_axis(rows, targets, axis=1)[:, 0]
        total += mx.sum(mx.logsumexp(rows, axis=1) - chosen).item()
        count += len(ids) - 1
    return math.exp(total / count)


def generate(llm: LLM, prompts: list[list[int]]) -> list[Any]:
    params = SamplingParams(temperature=0, max_tokens=40)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert all(output.error is None for output in outputs)
    return outputs


def run(llm: LLM, prompts: list[list[int]]) -> list[list[int]]:
    return [output.token_ids for output in generate(llm, prompts)]


@pytest.fixture(scope="module")
def prompts(model) -> list[list[int]]:
    """Conversations with a common system prompt; the first one is long."""
    ids = [chat_ids(model[1], question) for question in QUESTIONS]
    return [[*ids[0][:-3], *english_ids(model[1])[0][:400], *ids[0][-3:]], *ids]


@pytest.fixture(scope="module")
def alone(model, prompts) -> list[list[int]]:
    """Output of each prompt alone, prefilled in one chunk, without a prefix cache."""
    llm = LLM(model, max_num_seqs=1, max_num_batched_tokens=1024, enable_prefix_caching=False)
    return [run(llm, [prompt])[0] for prompt in prompts]


TOKEN_BYTES = 2 * 30 * 3 * 64 * 2  # KV of one token in float16


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 17, "max_num_seqs": 4, "enable_prefix_caching": False},
    "preempted": {
        "kv_cache_bytes": 576 * TOKEN_BYTES,
        "block_size": 8,
        "enable_prefix_caching": False,
    },
    "drafts": {"speculative": "ngram"},
    "page-size": {"block_size": 16},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_tokens_are_the_same_in_every_configuration(model, prompts, alone, name):
    llm = LLM(model, **CONFIGURATIONS[name])
    outputs = generate(llm, prompts)
    assert [output.token_ids for output in outputs] == alone
    if name == "preempted":
        assert any(output.metrics.num_preemptions for output in outputs)
    assert run(llm, prompts) == alone  # with prefix hits


@pytest.mark.slow
def test_tokens_are_the_same_with_pages_from_disk(model, prompts, alone, tmp_path):
    for _ in range(2):
        llm = LLM(model, prefix_cache_dir=tmp_path)
        outputs = generate(llm, prompts)
        assert [output.token_ids for output in outputs] == alone
        del llm
    assert outputs[0].num_cached_tokens > 300


def test_three_ranks(file):
    """SmolLM2 has nine query heads, which two ranks cannot share."""
    command = [sys.executable, "-m", "tiny_llm", "main", "--model", str(file), "--tp", "3"]
    command += ["--loader", "engine", "--prompt", QUESTIONS[0]]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert "The capital of France is Paris." in output


@pytest.fixture(scope="module")
def client(file) -> Iterator[openai.OpenAI]:
    server = RunningServer("--model", str(file))
    yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert server.stop() == 0, "".join(server.lines[-60:])


def ask(client: openai.OpenAI, content: str, **options: Any) -> Any:
    (model,) = client.models.list().data
    messages = [{"role": "user", "content": content}]
    options = {"temperature": 0, "max_tokens": 100, **options}
    return client.chat.completions.create(model=model.id, messages=messages, **options).choices[0]


def test_chat(client):
    choice = ask(client, QUESTIONS[0])
    assert choice.message.content == "The capital of France is Paris."
    assert choice.finish_reason == "stop"


def test_json_schema(client):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "rank": {"type": "integer"}},
        "required": ["city", "rank"],
        "additionalProperties": False,
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    choice = ask(client, "Name a large city as JSON.", response_format=response_format)
    answer = json.loads(choice.message.content)
    assert answer.keys() == {"city", "rank"}


def test_required_tool(client):
    parameters = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    }
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": parameters}}
    options = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    choice = ask(client, "What is the weather in Paris?", **options)
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments).keys() == {"city"}
