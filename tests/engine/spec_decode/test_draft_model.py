"""Draft model: fewer steps, same outputs as without drafts."""

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.structured_output.tiny_language import (
    END,
    LANGUAGE,
    TOKENS,
    V,
    allowed_tokens,
    tiny_tokenizer,
)
from tests.engine.support import assert_distributed_as, chat
from tests.support import tiny_model
from tiny_llm import LLM, SamplingParams, StructuredOutputs
from tiny_llm.demo import BATCH_PROMPTS
from tiny_llm.engine.execution.paged_model import PagedModel, Span
from tiny_llm.engine.execution.sampler import SamplingRow, TokenCounts, process_logits
from tiny_llm.engine.scheduling.request import EngineRequest
from tiny_llm.models.loading import serving_model


def test_fewer_steps_same_text(demo):
    params = SamplingParams(temperature=0, max_tokens=80)
    prompts = [chat(prompt) for prompt in BATCH_PROMPTS]
    plain = LLM(demo, kv_cache_bytes=2**25)
    with_draft_model = LLM(demo, kv_cache_bytes=2**25, draft_model="demo-draft")
    outputs = zip(
        with_draft_model.generate(prompts, params), plain.generate(prompts, params), strict=True
    )
    assert all((o.token_ids, o.text) == (e.token_ids, e.text) for o, e in outputs)
    few, many = with_draft_model.runner, plain.runner
    assert many.statistics.target_steps > 1.7 * few.statistics.target_steps
    assert many.num_decodes > 1.7 * few.num_decodes


def exact_distribution(model, prompt: list[int], params: SamplingParams) -> dict:
    """Exact probability of every output of `max_tokens` tokens, or of the small language."""
    complete, partial = {}, {(): 1.0}
    while partial:
        output, probability = partial.popitem()
        paged = PagedModel(serving_model("random", model, page_size=8), 2)
        request = EngineRequest("", prompt, params, token_counts=TokenCounts(prompt, V))
        request.token_ids += output
        request.page_ids.extend([0, 1])
        span = Span(request.token_ids, 0, request.page_ids)
        logits = paged.logits([span], [request.num_tokens - 1])
        logits = process_logits(logits, [SamplingRow(request, len(output))])
        p = np.array(mx.softmax(logits, axis=-1)[0], np.float64)
        if params.structured_outputs is not None:
            may_follow = allowed_tokens("".join(TOKENS[token] for token in output))
            p[[token for token in range(V) if token not in may_follow]] = 0
            p /= p.sum()
        for token in np.flatnonzero(p).tolist():
            ends = len(output) + 1 == params.max_tokens or (token == END and not params.ignore_eos)
            longer = complete if ends else partial
            longer[(*output, token)] = probability * p[token]
    return complete


FREE = {"max_tokens": 3, "ignore_eos": True}
GRAMMAR = {"structured_outputs": StructuredOutputs(regex=LANGUAGE)}
FILTERS = {"top_p": 0.9, "frequency_penalty": 0.8, "logit_bias": {2: 1.0}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "has_draft"),
    [
        ({"temperature": 1.0, **FREE}, True),
        ({"temperature": 0.8, **FILTERS, **FREE}, True),
        (GRAMMAR, True),
        (GRAMMAR, False),
    ],
    ids=["temperature", "filters and penalties", "grammar", "grammar without drafts"],
)
def test_sampled_outputs_have_the_target_distribution(params, has_draft):
    """Chi-square test over complete outputs, with a poor draft model."""
    if params is GRAMMAR:
        pytest.importorskip("llguidance")
    models = []
    for seed, num_hidden_layers in ((1, 2), (2, 1)):
        mx.random.seed(seed)
        sizes = {"vocab_size": V, "hidden_size": 64, "intermediate_size": 64}
        model = tiny_model(mx.bfloat16, num_hidden_layers=num_hidden_layers, **sizes)
        models.append((model, tiny_tokenizer()))
    draft = {"draft_model": models[1], "num_drafts": 2} if has_draft else {}
    llm = LLM(models[0], block_size=8, max_num_seqs=64, kv_cache_bytes=2**20, **draft)
    prompt, sampling_params = [1, 2, 3], SamplingParams(**params, n=3000, seed=9)
    [output] = llm.generate(prompt, sampling_params)
    assert output.error is None
    outputs = [tuple(completion.token_ids) for completion in output.outputs]
    expected = exact_distribution(models[0][0], prompt, sampling_params)
    assert sum(expected.values()) == pytest.approx(1)
    assert_distributed_as(outputs, expected)
    stats = llm.runner.statistics
    assert params is GRAMMAR or 0.1 < stats.num_accepted_tokens / stats.num_draft_tokens < 0.95, (
        "both accepted and rejected draft tokens must be frequent"
    )


def test_draft_with_target_weights_is_always_accepted(demo):
    llm = LLM(demo, kv_cache_bytes=2**25, draft_model=demo, num_drafts=3)
    params = SamplingParams(temperature=2, max_tokens=32, ignore_eos=True, top_k=100)
    llm.generate([[token] for token in range(5, 10)], params)
    stats = llm.runner.statistics
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 100
