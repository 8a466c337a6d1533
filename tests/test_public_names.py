"""Public names of the course: modules, parameter order and defaults.

Other people's code is written against them. A parameter may gain a default, and further optional
parameters may follow the last one; nothing else may change.
"""

import importlib
import inspect
from types import SimpleNamespace

import mlx.core as mx
import pytest

import tiny_llm
from tests.support import assert_same_bits, tiny_model, tiny_quantized_model
from tiny_llm import Qwen3ModelWeek1, Qwen3ModelWeek2, Qwen3ModelWeek3

# Module of `tiny_llm` -> promised signatures.
PROMISED = {
    "basics": ["softmax(x, axis)", "linear(x, w, bias=None)", "silu(x)"],
    "attention": [
        "scaled_dot_product_attention_simple(query, key, value, scale=None, mask=None)",
        "SimpleMultiHeadAttention(hidden_size, num_heads, wq, wk, wv, wo)",
        "SimpleMultiHeadAttention.__call__(query, key, value, mask=None)",
        "causal_mask(L, S, dtype)",
        "scaled_dot_product_attention_grouped(query, key, value, scale=None, mask=None)",
        "flash_attention(query, key, value, scale=None, mask=None)",
        "paged_attention(query, key_pages, value_pages, block_table, context_lens, page_size, "
        "scale=None, mask='causal')",
        "paged_attention_varlen(query, key_pages, value_pages, cu_seqlens_q, context_lens, "
        "block_table, page_size, scale=None)",
    ],
    "positional_encoding": [
        "RoPE(dims, seq_len, base=10000, traditional=False)",
        "RoPE.__call__(x, offset)",
    ],
    "layer_norm": ["RMSNorm(dim, weight, eps=1e-05)", "RMSNorm.__call__(x)"],
    "embedding": [
        "Embedding(vocab_size, embedding_dim, weight)",
        "Embedding.__call__(ids)",
        "Embedding.as_linear(x)",
    ],
    "qwen3_week1": [
        "Qwen3MultiHeadAttention(hidden_size, num_heads, num_kv_heads, head_dim, wq, wk, wv, wo, "
        "q_norm, k_norm, max_seq_len=32768, theta=1000000, rms_norm_eps=1e-05)",
        "Qwen3MultiHeadAttention.__call__(x, mask=None)",
        "Qwen3MLP(dim, hidden_dim, w_gate, w_up, w_down)",
        "Qwen3MLP.__call__(x)",
        "Qwen3TransformerBlock(num_attention_heads, num_kv_heads, hidden_size, head_dim, "
        "intermediate_size, rms_norm_eps, wq, wk, wv, wo, q_norm, k_norm, w_gate, w_up, w_down, "
        "w_input_layernorm, w_post_attention_layernorm, max_seq_len=32768, theta=1000000)",
        "Qwen3TransformerBlock.__call__(x, mask=None)",
        "Qwen3ModelWeek1(mlx_model)",
        "Qwen3ModelWeek1.__call__(ids)",
    ],
    "quantize": [
        "dequantize_linear(mlx_layer)",
        "QuantizedWeights(scales, biases, group_size, bits, weight)",
        "QuantizedWeights.from_mlx_layer(mlx_layer)",
        "quantized_matmul(scales, biases, group_size, bits, a, b, transpose_b=True)",
        "quantized_linear(x, w, bias=None)",
    ],
    "generate": [
        "simple_generate(model, tokenizer, prompt, sampler=None, max_tokens=None)",
        "simple_generate_with_kv_cache(model, tokenizer, prompt, sampler=None, max_tokens=None)",
        "speculative_generate(draft_model, model, draft_tokenizer, tokenizer, prompt, "
        "sampler=None, num_drafts=4, max_tokens=None)",
    ],
    "sampler": ["make_sampler(temp, top_p=None, top_k=None, min_p=None, seed=None)"],
    "models": [
        "shortcut_name_to_full_name(name)",
        "dispatch_model(name, mlx_model, week, **options)",
    ],
    "kv_cache": [
        "TinyKvCache.update_and_fetch(key, value, mask_length=None, mask=None)",
        "TinyKvCache.rewind(n)",
        "TinyKvCache.release()",
        "TinyKvFullCache()",
        "TinyKvFullCache.update_and_fetch(key, value, mask_length=None, mask=None)",
        "BatchingKvCache(max_active_requests, max_seq_len)",
        "BatchingKvCache.add_request(cache, slot)",
        "BatchingKvCache.remove_request(slot)",
        "BatchingKvCache.update_and_fetch(keys, values, mask_length, mask)",
    ],
    "qwen3_week2": [
        "Qwen3ModelWeek2(mlx_model, enable_flash_attn=False)",
        "Qwen3ModelWeek2.__call__(inputs, offset, cache)",
        "Qwen3ModelWeek2.create_kv_cache()",
    ],
    "batch": [
        "batch_generate(model, tokenizer, prompts, max_seq_len=512, batch_size=5, "
        "prefill_step=128, sampler=None)",
        "Request.try_prefill()",
    ],
    "paged_kv_cache": [
        "TinyKvPagedPool(page_size=128)",
        "TinyKvPagedPool.allocate_page()",
        "TinyKvPagedPool.free_page(page_id)",
        "TinyKvPagedPool.read_page(page_id)",
        "TinyKvPagedPool.write_page_slice(page_id, start, key, value)",
        "TinyKvPagedCache(pool)",
        "TinyKvPagedCache.update_and_fetch(key, value, mask_length=None, mask=None)",
        "TinyKvPagedCache.update_and_fetch_paged(key, value, mask_length=None, mask=None)",
        "TinyKvPagedCache.gather_dense()",
        "TinyKvPagedCache.rewind(n)",
        "TinyKvPagedCache.release()",
        "BatchingKvCache.update_and_fetch_paged(key, value, mask_length=None, mask=None)",
        "PagedKvMetadata(key_pages, value_pages, block_table, context_lens, page_size, mask)",
    ],
    "qwen3_week3": [
        "Qwen3ModelWeek3(mlx_model, page_size=128)",
        "Qwen3ModelWeek3.__call__(inputs, offset, cache)",
        "Qwen3ModelWeek3.create_kv_cache()",
    ],
}
CASES = [(module, promise) for module, promises in PROMISED.items() for promise in promises]
ATTRIBUTES = {
    "TinyKvFullCache": ["offset", "key_values"],
    "TinyKvPagedPool": ["key_pages", "value_pages", "num_pages", "num_free_pages"],
    "TinyKvPagedCache": ["page_ids", "page_lens", "offset", "num_pages"],
}


def parameters(signature: str) -> list[inspect.Parameter]:
    """Parameters of a promise such as "f(x, y=1)"."""
    scope: dict[str, object] = {}
    exec(f"def f({signature.partition('(')[2][:-1]}): ...", scope)
    return list(inspect.signature(scope["f"]).parameters.values())


@pytest.mark.parametrize(("module", "promise"), CASES, ids=[promise for _, promise in CASES])
def test_signature(module, promise):
    name, _, method = promise.partition("(")[0].partition(".")
    found = getattr(importlib.import_module(f"tiny_llm.{module}"), name)
    assert getattr(tiny_llm, name) is found, f"expected tiny_llm.{name} to be of {module}"
    promised, function = parameters(promise), getattr(found, method) if method else found
    actual = list(inspect.signature(function).parameters.values())
    if method and not inspect.ismethod(function):
        actual = actual[1:]  # self
    hint = f"expected {promise}, got {actual}"
    assert len(actual) >= len(promised), hint
    for expected, parameter in zip(promised, actual, strict=False):
        assert (parameter.name, parameter.kind) == (expected.name, expected.kind), hint
        if expected.default is not inspect.Parameter.empty:
            assert parameter.default == expected.default, hint
    for extra in actual[len(promised) :]:
        is_variadic = extra.kind in (extra.VAR_POSITIONAL, extra.VAR_KEYWORD)
        assert extra.default is not inspect.Parameter.empty or is_variadic, hint


@pytest.mark.parametrize("name", ["attention", "kv_cache", "paged_kv_cache", "generate"])
def test_modules_are_attributes_of_the_package(name):
    assert importlib.import_module(f"tiny_llm.{name}") is getattr(tiny_llm, name)


@pytest.mark.parametrize("owner", ATTRIBUTES)
def test_attributes(owner):
    arguments = [tiny_llm.TinyKvPagedPool()] if owner == "TinyKvPagedCache" else []
    instance = getattr(tiny_llm, owner)(*arguments)
    assert all(hasattr(instance, name) for name in ATTRIBUTES[owner])


QUANTIZED = {"scales", "biases", "group_size", "bits"}
LAYERS = {
    "self_attn": ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"),
    "mlp": ("gate_proj", "up_proj", "down_proj"),
}


def plain_objects(mlx_model):
    """The attributes of an `mlx_lm` model that the weeks' models read, without `nn.Module`."""

    def leaf(layer):
        names = {"weight"} | (QUANTIZED if hasattr(layer, "scales") else set())
        return SimpleNamespace(**{name: getattr(layer, name) for name in names})

    def leaves(parent, *names):
        return {name: leaf(getattr(parent, name)) for name in names}

    def block(layer):
        parts = {
            part: SimpleNamespace(**leaves(getattr(layer, part), *names))
            for part, names in LAYERS.items()
        }
        norms = leaves(layer, "input_layernorm", "post_attention_layernorm")
        return SimpleNamespace(**parts, **norms)

    layers = [block(layer) for layer in mlx_model.model.layers]
    model = SimpleNamespace(layers=layers, **leaves(mlx_model.model, "embed_tokens", "norm"))
    head = () if mlx_model.args.tie_word_embeddings else ("lm_head",)
    args = SimpleNamespace(**vars(mlx_model.args))
    return SimpleNamespace(args=args, model=model, **leaves(mlx_model, *head))


@pytest.mark.parametrize("build", [tiny_model, tiny_quantized_model])
@pytest.mark.parametrize("tied", [True, False])
def test_models_take_any_objects_with_the_attributes_of_mlx_lm(build, tied):
    mlx_model = build(mx.bfloat16, tie_word_embeddings=tied)
    ids = mx.array([[3, 17, 130, 0, 3]])
    for week in (Qwen3ModelWeek1, Qwen3ModelWeek2, Qwen3ModelWeek3):
        logits = []
        for source in (mlx_model, plain_objects(mlx_model)):
            model = week(source)
            cached = () if week is Qwen3ModelWeek1 else (0, model.create_kv_cache())
            logits.append(model(ids, *cached))
        assert_same_bits(logits[1], logits[0], f"logits of {week.__name__}")


def test_mask_length_is_the_third_argument_of_paged_caches():
    cache = tiny_llm.TinyKvPagedCache(tiny_llm.TinyKvPagedPool(4))
    tokens = mx.zeros((1, 2, 6, 8))
    assert cache.update_and_fetch_paged(tokens, tokens, 6, "causal").mask == "causal"
    assert cache.page_lens == [4, 2]
