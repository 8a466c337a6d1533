"""Multi-token prediction: `mlx_lm` as the oracle, unchanged outputs, memory."""

import json
from array import array

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import qwen3_5

from tests.engine.hybrid import CONFIG, KV_BYTES_PER_TOKEN, STATE_BYTES, build, write_hybrid
from tests.engine.support import PARAGRAPH, chat
from tests.models.support import write_checkpoint
from tests.support import as_numpy
from tiny_llm import LLM, SamplingParams, StructuredOutputs, UserError
from tiny_llm.engine.execution.paged_model import Span, ragged_batch
from tiny_llm.models import ModelError, load_weights, serving_model

FLOAT32 = {"torch_dtype": "float32", "tie_word_embeddings": False}
EXPERTS = {
    "model_type": "qwen3_5_moe_text",
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}


def draft_logits(tensors, config, hidden, token_ids, draft_tokens):
    """Logits of draft tokens after n tokens; `hidden` is for the first n − 1.

    The MTP layer maps hidden states h_t, T×E, and the next tokens x_{t+1} to hidden states g_t.
    """
    args = qwen3_5.TextModelArgs.from_dict(config)
    layer = qwen3_5.DecoderLayer(args, layer_idx=args.full_attention_interval - 1)
    prefix = "mtp.layers.0."
    layer.load_weights([(n.removeprefix(prefix), t) for n, t in tensors.items() if prefix in n])
    table = tensors["model.embed_tokens.weight"]

    def norm(name, x):
        return mx.fast.rms_norm(x, tensors[f"mtp.{name}.weight"], args.rms_norm_eps)

    ids, logits = list(token_ids[1:]), []
    for draft_token in draft_tokens:
        pair = [norm("pre_fc_norm_embedding", table[mx.array(ids)])]
        pair.append(norm("pre_fc_norm_hidden", hidden))
        x = mx.concatenate(pair, axis=-1) @ tensors["mtp.fc.weight"].T
        g = norm("norm", layer(x[None], mask="causal")[0])
        logits.append(g[-1] @ tensors["lm_head.weight"].T)
        hidden = mx.concatenate([hidden, g[-1:]])
        ids.append(draft_token)
    return logits


def target_hidden(checkpoint, token_ids):
    """The target's hidden states after the final norm, computed in one step, T×E."""
    model = serving_model("it", checkpoint, page_size=16)
    pages = array("i", range(-(-len(token_ids) // 16)))
    span = Span(token_ids, 0, pages, -1, [(len(token_ids) - 1, 0)])
    storage, rows = model.create_paged_storage(len(pages), 1), range(len(token_ids))
    batch = ragged_batch([span], storage.layout, True)
    return model.ragged_features(mx.array(token_ids), batch, rows, storage)


def record_drafts(llm):
    """Records (token ids, draft tokens, their logits) of chunks with drafts."""
    recorded, rows, drafter = [], [], llm.runner.draft
    propose, lm_head = drafter.propose, drafter.model.lm_head

    def record_head(features):
        logits = lm_head(features)
        rows.append(as_numpy(logits))
        return logits

    def record_proposal(chunks):
        rows.clear()
        draft_tokens = propose(chunks)
        for index in range(max(map(len, draft_tokens), default=0)):
            assert len(rows[index]) == sum(len(drafts) > index for drafts in draft_tokens)
        for number, (chunk, drafts) in enumerate(zip(chunks, draft_tokens, strict=True)):
            before = draft_tokens[:number]
            logits = [rows[i][sum(len(d) > i for d in before)] for i in range(len(drafts))]
            if drafts:
                recorded.append((list(chunk.request.token_ids), drafts, logits))
        return draft_tokens

    drafter.propose, drafter.model.lm_head = record_proposal, record_head
    return recorded


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "page", "chunk"), [({}, 3, 5), (EXPERTS, 16, 64)], ids=["dense", "moe"]
)
def test_draft_logits_match_the_oracle(tmp_path, changes, page, chunk):
    """Covers chunks, batches, preemption and a prefix cache hit."""
    folder = write_hybrid(tmp_path / "model", mtp=True, **FLOAT32, **changes)
    tensors = mx.load(str(folder / "model.safetensors"))
    mx.random.seed(4)
    for name, tensor in tensors.items():
        if name.startswith("mtp.") and tensor.ndim == 1:  # norms
            tensors[name] = mx.random.uniform(0.5, 1.5, tensor.shape)
    write_checkpoint(folder, {**CONFIG, **FLOAT32, **changes}, tensors)
    checkpoint = load_weights(str(folder), mtp=True)
    llm = build(
        checkpoint,
        tokens=80,
        speculative="mtp",
        num_drafts=3,
        block_size=page,
        max_num_seqs=3,
        max_num_batched_tokens=12 + chunk,
    )
    recorded = record_drafts(llm)
    params = SamplingParams(max_tokens=30, seed=1, ignore_eos=True, top_k=3)
    llm.generate([[5], list(range(100, 131)), list(range(300, 321)), [7, 8, 9]], params)
    assert llm.scheduler.num_preemptions > 0
    second_params = SamplingParams(max_tokens=9, seed=2, ignore_eos=True)
    [turn] = llm.generate([list(range(200, 240))], second_params)
    # The token after the cached prefix is the same in both turns, so the MTP layer's keys are, too.
    [again] = llm.generate([[*range(200, 240), *turn.token_ids, 4, 5]], second_params)
    assert again.num_cached_tokens >= 32
    assert len(recorded) > 100
    for token_ids, drafts, actual in recorded[::5] + recorded[-4:]:
        hidden = target_hidden(checkpoint[0], token_ids[:-1])
        expected = draft_logits(tensors, {**CONFIG, **changes}, hidden, token_ids, drafts)
        for row, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(row, as_numpy(other), atol=1e-4)


def write_predictable(folder, noise=0.0):
    """Writes a model and MTP layer that predict from the last token alone.

    All layers output zero, and the LM head's row for token t + 1 is the embedding of token t.
    `noise` perturbs the MTP layer's input projection.
    """
    write_hybrid(folder, mtp=True, **FLOAT32)
    weights = mx.load(str(folder / "model.safetensors"))
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            weights[name] = mx.zeros_like(weight)
    E, V = CONFIG["hidden_size"], CONFIG["vocab_size"]
    mx.random.seed(2)
    table = weights["model.embed_tokens.weight"] = mx.random.normal((V, E))
    weights["lm_head.weight"] = table[(mx.arange(V) - 1) % V]
    fc = mx.concatenate([mx.eye(E), mx.zeros((E, E))], axis=1)
    weights["mtp.fc.weight"] = fc + noise * mx.random.normal(fc.shape)
    return str(write_checkpoint(folder, {**CONFIG, **FLOAT32}, weights))


@pytest.mark.parametrize("option", [None, 3])
def test_exact_mtp_layer_is_always_accepted(tmp_path, option):
    num_drafts = option or 1  # the default
    folder = write_predictable(tmp_path / "model")
    llm = LLM(folder, speculative="mtp", num_drafts=option, kv_cache_bytes=2**22)
    params = SamplingParams(temperature=0, max_tokens=1 + 6 * (num_drafts + 1), ignore_eos=True)
    outputs = llm.generate([[10], [20, 500]], params)
    for output, last in zip(outputs, (10, 500), strict=True):
        assert output.token_ids == list(range(last + 1, last + 1 + params.max_tokens))
    stats = llm.runner.statistics
    assert stats.num_accepted_tokens == stats.num_draft_tokens == 2 * 6 * num_drafts
    assert stats.target_steps == 1 + 6
    assert llm.scheduler.config.num_drafts == num_drafts


@pytest.fixture(scope="module")
def predictable(tmp_path_factory):
    folder = write_predictable(tmp_path_factory.mktemp("mtp") / "model", noise=0.1)
    return load_weights(folder, mtp=True)


OPTIONS = (
    {"kv_cache_dtype": "int8"},
    {"attention_backend": "flash"},
    {"attention_backend": "reference"},
    {"scheduling_policy": "fair", "max_num_batched_tokens": 64, "block_size": 5},
    {"enable_prefix_caching": False, "max_num_seqs": 2},
)


@pytest.mark.parametrize(
    "options", [{}, *(pytest.param(o, marks=pytest.mark.slow) for o in OPTIONS)], ids=str
)
def test_outputs_do_not_depend_on_mtp(predictable, options):
    prompts = [chat(PARAGRAPH * n + "Who is the mayor?") for n in (0, 1, 3)]
    params = SamplingParams(seed=9, max_tokens=30, ignore_eos=True, temperature=4, logprobs=2)
    options = {"kv_cache_bytes": 2**22, "max_num_seqs": 8, **options}
    plain = LLM(predictable, **options)
    llm = LLM(predictable, speculative="mtp", num_drafts=3, **options)
    outputs = zip(llm.generate(prompts, params), plain.generate(prompts, params), strict=True)
    for actual, expected in outputs:
        assert actual.token_ids == expected.token_ids
        assert actual.outputs[0].logprobs == expected.outputs[0].logprobs
    stats = llm.runner.statistics
    assert 0.1 < stats.num_accepted_tokens / stats.num_draft_tokens < 0.95
    assert stats.target_steps < 0.9 * plain.runner.statistics.target_steps
    # `batch`, `bench` and the server's metrics derive the acceptance rate from these counters.
    assert llm.runner.num_decodes + stats.num_accepted_tokens >= 3 * 29


def test_grammars_and_prompt_logprobs_with_mtp(predictable):
    schema = StructuredOutputs(json={"enum": ["Lenmora", "Tavel", "Mira Holton"]})
    params = [
        SamplingParams(max_tokens=20, structured_outputs=schema),
        SamplingParams(max_tokens=9, seed=2, prompt_logprobs=1, ignore_eos=True),
    ]
    plain = LLM(predictable, kv_cache_bytes=2**22).generate([PARAGRAPH] * 2, params)
    llm = LLM(predictable, speculative="mtp", num_drafts=3, kv_cache_bytes=2**22)
    drafting = llm.generate([PARAGRAPH] * 2, params)
    assert [d.text for d in drafting] == [p.text for p in plain]
    assert drafting[1].prompt_logprobs == plain[1].prompt_logprobs
    assert llm.runner.statistics.num_accepted_tokens > 3


def test_checkpoints_are_kept_when_all_draft_tokens_are_accepted(tmp_path):
    """The next turn hits an output whose last step ends at a page boundary."""
    folder = write_predictable(tmp_path / "model")
    for options in ({}, {"speculative": "mtp", "num_drafts": 3}, {"speculative": "ngram"}):
        llm = build(load_weights(folder, mtp=True), block_size=4, **options)
        greedy = SamplingParams(temperature=0, max_tokens=13, ignore_eos=True)
        # 16 tokens are computed: the 4 of the prompt, and all output tokens except the last.
        [output] = llm.generate([[10, 11, 12, 13]], greedy)
        [again] = llm.generate([[10, 11, 12, 13, *output.token_ids, 7]], greedy)
        assert again.num_cached_tokens == 16


def test_nan_logits_fail_only_their_request(predictable):
    llm = build(predictable, speculative="mtp", num_drafts=2)
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    head = llm.runner.target.lm_head

    def head_with_nan(features):
        logits = head(features)
        if len(logits) > 1:
            logits[0] = mx.nan
        return logits

    llm.runner.target.lm_head = head_with_nan
    assert llm.generate([[10], [20]], params)[0].error is not None
    llm.runner.target.lm_head = head
    [again] = llm.generate([[20]], params)
    assert again.token_ids == list(range(21, 31))


def test_kv_memory_includes_the_mtp_layers_pages(predictable):
    plain = LLM(predictable, kv_cache_bytes=2**21).scheduler.config
    llm = LLM(predictable, kv_cache_bytes=2**21, speculative="mtp")
    config = llm.scheduler.config
    page_bytes = config.page_size * 2 * KV_BYTES_PER_TOKEN  # float32: twice bfloat16's size
    assert plain.num_pages == 2**21 // page_bytes
    assert config.num_pages == 2**21 // (2 * page_bytes)
    llm.reserve()
    layer, target = llm.runner.draft.model, llm.runner.target
    assert layer.nbytes < target.nbytes
    assert 0.9 * 2**21 < layer.nbytes + target.nbytes <= 2**21


def test_mtp_weights_are_shared_and_not_loaded_by_default(tmp_path):
    folder = str(write_hybrid(tmp_path / "model", mtp=True))
    assert "mtp" not in load_weights(folder)[0]
    loaded = load_weights(folder, mtp=True)
    before = mx.get_active_memory()
    llm = LLM(loaded, speculative="mtp", kv_cache_bytes=2**22)
    target, layer = llm.runner.target.model, llm.runner.draft.model.model
    mx.eval(layer.embedding.weight, layer.w_lm_head.weight, target.w_lm_head.weight)
    reserved = sum(model.unused_bytes for model in llm.runner.models)
    assert mx.get_active_memory() - before - reserved < target.embedding.weight.nbytes
    assert len(layer.layers) == 1
    assert layer.kv_bytes_per_token == KV_BYTES_PER_TOKEN
    assert (layer.state_bytes, target.state_bytes) == (0, STATE_BYTES)


def test_invalid_models_and_options_are_rejected(tmp_path):
    folder = str(write_hybrid(tmp_path / "model"))

    def assert_rejected(message, model=folder, error=ModelError, **options):
        with pytest.raises(error, match=message):
            LLM(model, speculative="mtp", kv_cache_bytes=2**22, **options)

    assert_rejected(r"it has no mtp\.\* tensors, which multi-token prediction")
    loaded = load_weights(folder)
    assert_rejected(r"was loaded without its multi-token .* `load_weights\(…, mtp=True\)`", loaded)
    assert_rejected("model type 'qwen3' has no multi-token prediction layer", "demo")
    message = "speculative='mtp' and draft_model cannot be"
    assert_rejected(message, error=UserError, draft_model=folder)
    assert_rejected("num_drafts must be at least 1", error=UserError, num_drafts=0)
    for name, value, message in (
        ("mtp_num_hidden_layers", 0, "mtp_num_hidden_layers 0; multi-token prediction requires 1"),
        ("mtp_num_hidden_layers", 2, "mtp_num_hidden_layers 2; multi-token prediction requires 1"),
        ("mtp_use_dedicated_embeddings", True, "requires the model's embedding"),
    ):
        (tmp_path / "model" / "config.json").write_text(json.dumps({**CONFIG, name: value}))
        for load_format in ("auto", "dummy"):
            assert_rejected(message, load_format=load_format)
        LLM(folder, kv_cache_bytes=2**22)  # must load, because the MTP layer is not used


def test_dummy_weights_are_the_same_with_the_mtp_layer(tmp_path):
    folder = str(write_hybrid(tmp_path / "model"))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    outputs = []
    for options in ({}, {"speculative": "mtp", "num_drafts": 2}):
        llm = LLM(folder, load_format="dummy", kv_cache_bytes=2**22, **options)
        outputs.append(llm.generate([PARAGRAPH], params)[0].token_ids)
    assert llm.runner.statistics.num_draft_tokens > 0
    assert outputs[0] == outputs[1]
