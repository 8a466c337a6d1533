"""gpt-oss in the engine: the same tokens on every path."""

import pytest

from tests.models.support import FAMILIES, greedy_tokens, random_ids
from tiny_llm import LLM, SamplingParams
from tiny_llm.models.checkpoint.dummy import random_checkpoint
from tiny_llm.models.serving_model import serving_model

# MXFP4 with bfloat16 activations, or float32.
CONFIGS = {
    "mxfp4": {
        **FAMILIES["gpt_oss"],
        "quantization": {"mode": "mxfp4", "model.embed_tokens": False},
    },
    "float32": {**FAMILIES["gpt_oss"], "dtype": "float32"},
}
PARAMS = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
PROMPTS = [random_ids(9), random_ids(60), random_ids(33)]
# (config, options of an engine that must generate the tokens of the model alone).
ENGINES = {
    "alone": ("mxfp4", {"max_num_seqs": 1}),
    "chunked": ("mxfp4", {"max_num_seqs": 3, "max_num_batched_tokens": 7}),
    "drafts": ("mxfp4", {"speculative": "ngram"}),
    "preempted": ("mxfp4", {"kv_cache_bytes": 100_000, "max_num_seqs": 3}),
    "float32": ("float32", {}),
    "flash": ("float32", {"attention_backend": "flash"}),
    "reference": ("float32", {"attention_backend": "reference"}),
}


@pytest.fixture(scope="module")
def expected() -> dict[str, list[list[int]]]:
    answers = {}
    for name, config in CONFIGS.items():
        model = serving_model("gpt-oss", random_checkpoint(config), page_size=16)
        answers[name] = [greedy_tokens(model, prompt, 64) for prompt in PROMPTS]
    return answers


def test_int8_kv_cache(demo):
    """Greedy tokens with 8-bit keys and values equal those of the reference backend."""
    answers = []
    for backend in ("paged", "reference"):
        model = random_checkpoint(CONFIGS["float32"]), demo[1]
        options = {"kv_cache_dtype": "int8", "attention_backend": backend, "block_size": 16}
        outputs = LLM(model, **options).generate(PROMPTS, PARAMS, use_tqdm=False)
        answers.append([output.token_ids for output in outputs])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_greedy_tokens(engine, expected, demo):
    name, options = ENGINES[engine]
    llm = LLM((random_checkpoint(CONFIGS[name]), demo[1]), block_size=16, **options)
    for _ in range(2):  # the second run hits the prefix cache
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert [output.token_ids for output in outputs] == expected[name]
    if engine == "preempted":
        assert llm.scheduler.num_preemptions > 0
