"""Real models from their GGUF files, through engine and server."""

import json
import math
import pydoc_data.topics
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import openai
import pytest

from tests.models.support import dequantized, import_references
from tests.server.running_server import RunningServer
from tests.support import as_numpy, function_tool, object_schema
from tiny_llm import LLM, SamplingParams, load_weights
from tiny_llm.engine.execution.paged_model import Span, ragged_batch
from tiny_llm.kernels.prepack import copy_tree
from tiny_llm.models.loading import serving_model

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
CHUNK = 1024  # tokens


@dataclass(frozen=True)
class RealModel:
    """A GGUF file, and the same model in transformers."""

    artifacts: tuple[str, ...]  # their files, joined, are the GGUF file
    arch: gguf.MODEL_ARCH
    family: str  # name in transformers
    config: dict[str, Any]
    adapt: Callable[[str, np.ndarray], np.ndarray]  # a tensor of the file -> a parameter
    num_chunks: int  # of text whose perplexity is measured
    # Largest change of the perplexity, relative to transformers' in float32, by mode.
    limits: dict[str, float]
    ranks: int
    answer: str  # begins the answer to the first question
    finish_reason: str


def adapt_llama(name: str, weight: np.ndarray) -> np.ndarray:
    if ".q_proj." in name or ".k_proj." in name:  # a pair's rows are adjacent in GGUF
        return weight.reshape(-1, 32, 2, 576).swapaxes(1, 2)
    return weight


MODELS = {
    "smollm2": RealModel(
        ("smollm2",),
        gguf.MODEL_ARCH.LLAMA,
        "Llama",
        {
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
            "tie_word_embeddings": True,
        },
        adapt_llama,
        num_chunks=20,
        limits={"16 bits": 0.001, "int8 KV": 0.004, "8-bit activations": 0.008, "both": 0.01},
        ranks=3,
        answer="The capital of France is Paris.",
        finish_reason="stop",
    ),
    # Gemma 3 270M, not tuned to chat: it repeats the question.
    "gemma3": RealModel(
        ("gemma3-part1", "gemma3-part2", "gemma3-part3", "gemma3-part4"),
        gguf.MODEL_ARCH.GEMMA3,
        "Gemma3",
        {
            "vocab_size": 262_144,
            "hidden_size": 640,
            "intermediate_size": 2048,
            "num_hidden_layers": 18,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "max_position_embeddings": 32768,
            "sliding_window": 512,
        },
        lambda name, weight: weight - 1 if "norm" in name else weight,
        num_chunks=2,
        limits={"16 bits": 0.001, "int8 KV": 0.02, "8-bit activations": 0.008, "both": 0.02},
        ranks=2,
        answer="What is the capital of France?",
        finish_reason="length",
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def real(request: pytest.FixtureRequest) -> RealModel:
    return MODELS[request.param]


@pytest.fixture(scope="module")
def file(
    real: RealModel, artifact: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    parts = [next(artifact(name).iterdir()) for name in real.artifacts]
    if len(parts) == 1:
        return parts[0]
    joined = tmp_path_factory.mktemp("real") / f"{real.family}.gguf"
    with joined.open("wb") as output:
        for part in parts:
            output.write(part.read_bytes())
    return joined


@pytest.fixture(scope="module")
def model(file: Path) -> tuple[Any, Any]:
    return load_weights(str(file))


TensorOf = Callable[[str], gguf.ReaderTensor]


@pytest.fixture(scope="module")
def tensor_of(real: RealModel, file: Path) -> TensorOf:
    """The file's tensor of a parameter, which is named as in transformers."""
    names = gguf.get_tensor_name_map(real.arch, real.config["num_hidden_layers"])
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    return lambda name: tensors[names.get_name(name, try_suffixes=(".weight",))]


@pytest.fixture(scope="module")
def theirs(real: RealModel, tensor_of: TensorOf) -> Any:
    """The model in transformers, in float32, with weights dequantized by `gguf`."""
    torch, transformers = import_references()
    model_class = getattr(transformers, f"{real.family}ForCausalLM")
    model = model_class(model_class.config_class(**real.config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            tensor = tensor_of(name)
            weight = real.adapt(name, gguf.dequantize(tensor.data, tensor.tensor_type))
            parameter.copy_(torch.tensor(weight.reshape(parameter.shape)))
    return model.eval()


def their_logits(model: Any, ids: list[int], first: int = 0) -> np.ndarray:
    """Logits of one sequence from token `first` on."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids]), logits_to_keep=len(ids) - first).logits[0].numpy()


# Repacking rounds the scales of these (tests/models/gguf/test_blocks.py has the bounds).
ROUNDED = {gguf.GGMLQuantizationType[name] for name in ("Q4_K", "Q5_K", "Q6_K")}


def in_float32(weights: Any, tensor_of: TensorOf) -> Any:
    """A copy whose layers have dequantized float32 weights, the file's if repacking rounds them."""
    converted = copy_tree(weights)
    for name, layer in converted.named_modules():
        if "scales" not in layer:
            continue
        tensor = tensor_of(f"{name}.weight")
        if tensor.tensor_type in ROUNDED:
            layer.weight = mx.array(gguf.dequantize(tensor.data, tensor.tensor_type))
        else:
            layer.weight = mx.array(dequantized(layer))
        for array_name in ("scales", "biases"):
            del layer[array_name]
    return converted


def our_logits(model: Any, ids: list[int], first: int = 0) -> np.ndarray:
    """Logits of one sequence from token `first` on, prefilled in chunks."""
    storage, pages = model.create_paged_storage(16), array("i", range(16))
    rows = []
    for start in range(0, len(ids), 256):
        part = ids[start : start + 256]
        batch = ragged_batch([Span(part, start, pages, -1, [])], storage.layout, False)
        wanted = range(max(0, first - start), len(part))
        rows.append(as_numpy(model.ragged_logits(part, batch, wanted, storage)))
    return np.concatenate(rows).astype(np.float32)


def prompt_ids(tokenizer: Any, question: str) -> list[int]:
    if not tokenizer.has_chat_template:
        return tokenizer.encode(question)
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)


def english_ids(tokenizer: Any, num_chunks: int = 1) -> list[list[int]]:
    """Chunks of Python's documentation, which every machine with Python has."""
    topics = pydoc_data.topics.topics
    ids = tokenizer.encode("\n\n".join(topics[name] for name in sorted(topics)))
    return [ids[start : start + CHUNK] for start in range(0, CHUNK * num_chunks, CHUNK)]


@pytest.mark.slow
def test_float32_logits_and_greedy_tokens_equal_transformers(tensor_of, model, theirs):
    weights, tokenizer = in_float32(model[0], tensor_of), model[1]
    ours = serving_model("real", weights)
    llm = LLM((weights, tokenizer))
    params = SamplingParams(temperature=0, max_tokens=24)
    prompts = [prompt_ids(tokenizer, question) for question in QUESTIONS]
    prompts.append(english_ids(tokenizer)[0][:700])
    for output in llm.generate(prompts, params, use_tqdm=False):
        assert output.error is None
        prompt, answer = output.prompt_token_ids, output.token_ids
        ids = [*prompt, *answer]
        first = max(0, len(prompt) - 64)  # a quarter of the time of all logits
        expected = their_logits(theirs, ids, first)
        np.testing.assert_allclose(our_logits(ours, ids, first), expected, atol=1e-3)
        assert answer == expected[len(prompt) - 1 - first : -1].argmax(-1).tolist()


MODES: dict[str, dict[str, Any]] = {
    "16 bits": {},
    "int8 KV": {"kv_cache_dtype": "int8"},
    "8-bit activations": {"activation_bits": 8},
    "both": {"kv_cache_dtype": "int8", "activation_bits": 8},
}


@pytest.fixture(scope="module")
def expected_perplexity(real, model, theirs) -> float:
    chunks = english_ids(model[1], real.num_chunks)
    return perplexity(lambda ids: their_logits(theirs, ids), chunks)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_perplexity(real, model, expected_perplexity, capsys, mode):
    """Of English text; takes minutes, most of them in transformers."""
    ours = serving_model("real", model[0], **MODES[mode])
    chunks = english_ids(model[1], real.num_chunks)
    actual = perplexity(lambda ids: our_logits(ours, ids), chunks)
    change = actual / expected_perplexity - 1
    with capsys.disabled():
        print(f"\nperplexity, {mode}: {actual:.4f} ({change:+.3%} of {expected_perplexity:.4f})")
    assert abs(change) < real.limits[mode]


def perplexity(logits: Callable[[list[int]], np.ndarray], chunks: list[list[int]]) -> float:
    total, count = 0.0, 0
    for ids in chunks:
        rows = mx.array(logits(ids)[:-1])
        chosen = mx.take_along_axis(rows, mx.array(ids[1:])[:, None], axis=1)[:, 0]
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
    ids = [prompt_ids(model[1], question) for question in QUESTIONS]
    return [[*ids[0][:-3], *english_ids(model[1])[0][:400], *ids[0][-3:]], *ids]


@pytest.fixture(scope="module")
def alone(model, prompts) -> list[list[int]]:
    """Output of each prompt alone, prefilled in one chunk, without a prefix cache."""
    llm = LLM(model, max_num_seqs=1, max_num_batched_tokens=1024, enable_prefix_caching=False)
    return [run(llm, [prompt])[0] for prompt in prompts]


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "batched": {},
    "chunked": {"max_num_batched_tokens": 17, "max_num_seqs": 4, "enable_prefix_caching": False},
    # `kv_cache_bytes` is set in the test.
    "preempted": {"block_size": 8, "enable_prefix_caching": False},
    "drafts": {"speculative": "ngram"},
    "page-size": {"block_size": 16},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_tokens_are_the_same_in_every_configuration(model, prompts, alone, name):
    options = dict(CONFIGURATIONS[name])
    if name == "preempted":
        token_bytes = serving_model("real", model[0]).kv_bytes_per_token
        options["kv_cache_bytes"] = 576 * token_bytes
    llm = LLM(model, **options)
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


@pytest.mark.slow
def test_ranks(real, file, alone, prompts):
    """SmolLM2 has nine query heads, which two ranks cannot share."""
    program = f"""
from tiny_llm import LLM, SamplingParams
llm = LLM({str(file)!r}, tensor_parallel_size={real.ranks})
print(llm.generate([{prompts[0]!r}], SamplingParams(temperature=0, max_tokens=8))[0].token_ids)
"""
    command = [sys.executable, "-c", program]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert json.loads(output.splitlines()[-1]) == alone[0][:8]


@pytest.fixture(scope="module")
def chat_template(real, artifact, tmp_path_factory) -> list[str]:
    """The flags that select Gemma's official template, which its file lacks."""
    if real.family != "Gemma3":
        return []
    settings = json.loads((artifact("tokenizer-gemma3") / "tokenizer_config.json").read_text())
    file = tmp_path_factory.mktemp("template") / "gemma3.jinja"
    file.write_text(settings["chat_template"])
    return ["--chat-template", str(file)]


@pytest.fixture(scope="module")
def client(file, chat_template) -> Iterator[openai.OpenAI]:
    server = RunningServer("--model", str(file), *chat_template)
    yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    assert server.stop() == 0, "".join(server.lines[-60:])


def ask(client: openai.OpenAI, content: str, **options: Any) -> Any:
    (model,) = client.models.list().data
    messages = [{"role": "user", "content": content}]
    options = {"temperature": 0, "max_tokens": 100, **options}
    return client.chat.completions.create(model=model.id, messages=messages, **options).choices[0]


def test_chat(real, client):
    choice = ask(client, QUESTIONS[0])
    assert choice.message.content.startswith(real.answer)
    assert choice.finish_reason == real.finish_reason


CITY = {"type": "string", "maxLength": 20}


def test_json_schema(real, client):
    if real.finish_reason == "length":
        pytest.skip("not tuned to chat: it fills the object with spaces")
    schema = object_schema(city=CITY, rank={"type": "integer"}) | {"additionalProperties": False}
    response_format = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    choice = ask(client, "Name a large city as JSON.", response_format=response_format)
    assert json.loads(choice.message.content).keys() == {"city", "rank"}


def test_required_tool(client):
    tool = function_tool("get_weather", object_schema(city=CITY))
    options = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False}
    (call,) = ask(client, "What is the weather in Paris?", **options).message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments).keys() == {"city"}
