"""gpt-oss in the engine: the same tokens on every path."""

import pytest

from tests.models.support import FAMILIES, greedy_tokens, random_ids
from tiny_llm import LLM, SamplingParams
from tiny_llm.models.checkpoint.dummy import random_checkpoint
from tiny_llm.models.serving_model import serving_model

CONFIG = FAMILIES["gpt_oss"]
PARAMS = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
PROMPTS = [random_ids(9), random_ids(60), random_ids(33)]
# Options of engines that must generate the tokens of the whole model.
ENGINES = {
    "alone": {"max_num_seqs": 1},
    "chunked": {"max_num_batched_tokens": 7},
    "drafts": {"speculative": "ngram"},
    "preempted": {"kv_cache_bytes": 16 * 2 * 2 * 2 * 32 * 16 * 4},
    "flash": {"attention_backend": "flash"},
    "reference": {"attention_backend": "reference"},
}


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    model = serving_model("gpt-oss", random_checkpoint(CONFIG), page_size=16)
    return [greedy_tokens(model, prompt, 64) for prompt in PROMPTS]


def test_int8_kv_cache(demo):
    """Greedy tokens with 8-bit keys and values equal those of the reference backend."""
    answers = []
    for backend in ("paged", "reference"):
        model = random_checkpoint(CONFIG), demo[1]
        options = {"kv_cache_dtype": "int8", "attention_backend": backend, "block_size": 16}
        outputs = LLM(model, **options).generate(PROMPTS, PARAMS, use_tqdm=False)
        answers.append([output.token_ids for output in outputs])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_greedy_tokens(engine, expected, demo):
    llm = LLM((random_checkpoint(CONFIG), demo[1]), block_size=16, **ENGINES[engine])
    for _ in range(2):  # the second run hits the prefix cache
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert [output.token_ids for output in outputs] == expected
