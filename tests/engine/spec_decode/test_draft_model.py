"""Draft model: fewer steps, same outputs as without drafts."""

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.support import assert_distributed_as, chat
from tests.support import tiny_model
from tiny_llm import LLM, SamplingParams
from tiny_llm.cli.open_loop import TimestampTokenizer
from tiny_llm.demo import BATCH_PROMPTS
from tiny_llm.engine.execution.paged_model import PagedModel, Span
from tiny_llm.engine.execution.sampler import SamplingRow, TokenCounts, process_logits
from tiny_llm.engine.scheduling.request import EngineRequest
from tiny_llm.engine.spec_decode.draft_model import DraftModel
from tiny_llm.models.loading import serving_model

V = 8


def small_model(seed: int, **changes):
    mx.random.seed(seed)
    return tiny_model(mx.bfloat16, vocab_size=V, hidden_size=64, intermediate_size=64, **changes)


def test_fewer_steps_same_text(demo):
    params = SamplingParams(temperature=0, max_tokens=80)
    prompts = [chat(prompt) for prompt in BATCH_PROMPTS]
    plain = LLM(demo, kv_cache_bytes=2**25)
    with_draft_model = LLM(demo, kv_cache_bytes=2**25, draft_model="demo-draft")
    expected = plain.generate(prompts, params)
    outputs = with_draft_model.generate(prompts, params)
    assert [o.token_ids for o in outputs] == [e.token_ids for e in expected]
    assert [o.text for o in outputs] == [e.text for e in expected]
    assert (
        plain.runner.statistics.target_steps > 1.7 * with_draft_model.runner.statistics.target_steps
    )
    assert plain.runner.num_decodes > 1.7 * with_draft_model.runner.num_decodes


def exact_distribution(model, prompt: list[int], length: int, params: SamplingParams) -> dict:
    """Exact probability of every output of `length` tokens."""
    outputs = {(): 1.0}
    for _ in range(length):
        longer = {}
        for output, probability in outputs.items():
            paged = PagedModel(serving_model("random", model, page_size=8), 2)
            request = EngineRequest("", prompt, params, token_counts=TokenCounts(prompt, V))
            request.token_ids += output
            request.page_ids.extend([0, 1])
            span = Span(request.token_ids, 0, request.page_ids)
            logits = paged.logits([span], [request.num_tokens - 1])
            row = SamplingRow(request, len(output))
            p = np.array(mx.softmax(process_logits(logits, [row]), axis=-1)[0], np.float64)
            for token in np.flatnonzero(p):
                longer[(*output, int(token))] = probability * p[token]
        outputs = longer
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.8, "logit_bias": {2: 1.0}},
    ],
    ids=["temperature", "filters and penalties"],
)
def test_sampled_outputs_have_the_target_distribution(params):
    """Chi-square test over outputs of three tokens, with a poor draft model."""
    target, draft = small_model(1, num_hidden_layers=2), small_model(2, num_hidden_layers=1)
    num_samples, prompt = 3000, [1, 2, 3]
    llm = LLM(
        (target, TimestampTokenizer()),
        draft_model=(draft, TimestampTokenizer()),
        num_drafts=2,
        block_size=8,
        max_num_seqs=64,
        kv_cache_bytes=2**20,
    )
    sampling_params = SamplingParams(**params, max_tokens=3, n=num_samples, seed=9)
    [output] = llm.generate(prompt, sampling_params)
    outputs = [tuple(completion.token_ids) for completion in output.outputs]
    assert_distributed_as(outputs, exact_distribution(target, prompt, 3, sampling_params))
    stats = llm.runner.statistics
    assert 0.1 < stats.num_accepted_tokens / stats.num_draft_tokens < 0.95, (
        "both accepted and rejected draft tokens must be frequent"
    )


def test_draft_with_target_weights_is_always_accepted(demo):
    llm = LLM(demo, kv_cache_bytes=2**25, draft_model=demo, num_drafts=3)
    params = SamplingParams(temperature=2, max_tokens=32, ignore_eos=True, top_k=100)
    llm.generate([[token] for token in range(5, 10)], params)
    stats = llm.runner.statistics
    assert stats.num_accepted_tokens == stats.num_draft_tokens > 100


def test_uncomputed_draft_tokens():
    assert [DraftModel.num_uncomputed(*case) for case in ((3, 3), (3, 2), (0, 0))] == [1, 0, 0]
