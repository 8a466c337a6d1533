"""Parity with Hugging Face transformers: logits and greedy tokens."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.models.support import import_references, random_ids, sequence_logits, transformers_logits
from tests.support import as_numpy, token_prompts
from tiny_llm import LLM, Qwen3ModelWeek1, SamplingParams, load
from tiny_llm.kv_storage.step_plan import RaggedBatch
from tiny_llm.models.checkpoint.weights import read_checkpoint
from tiny_llm.models.serving_model import serving_model

# torch and transformers are imported by the fixture, because importing takes seconds.
torch: Any
transformers: Any


@pytest.fixture(scope="module", autouse=True)
def _import_references() -> None:
    global torch, transformers
    torch, transformers = import_references()


QUESTIONS = [
    "What is the capital of France?",
    "What is the capital of Japan?",
    "Name the capital of Peru.",
    "Which country has Rome as its capital?",
    "What is the KV cache?",
    "What is RoPE?",
    "Explain grouped-query attention.",
    "What is paged attention?",
    "Why is decode slow?",
    "What is the difference between prefill and decode?",
    "What is 17 + 25?",
    "What is 6 times 7?",
    "What is 50 - 8?",
    "How many days are in a week?",
    "What colour is the sky?",
    "What is the opposite of hot?",
    "Who are you?",
    "Hello!",
    "Give me a short introduction to large language model.",
    "Mira lives in Tavel. She is a baker.\n\nWhere does Mira live?",
    "What do bees make?",
    "Which planet is the largest?",
    "tell me about speculative decoding",
    "Ein Satz auf Deutsch, den das Modell nicht kennt: äöüß.",
]
NEW_TOKENS = 20


def hugging_face(folder: Path, dtype: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def random_model(model: Any) -> Any:
    """Random model with activations of about unit variance and random norms."""
    # Gemma 4 does not scale attention scores, so the norms of queries and keys are smaller.
    is_unscaled = model.config.model_type.startswith("gemma4")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
                if is_unscaled and name.endswith(("q_norm.weight", "k_norm.weight")):
                    parameter.mul_(parameter.shape[0] ** -0.25)
            elif parameter.ndim == 1:
                parameter.copy_(0.3 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.4, 1.3)
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("enable_thinking", [False, True])
def test_demo_model_greedy_tokens(demo_bfloat16_folder, enable_thinking):
    theirs = hugging_face(demo_bfloat16_folder, torch.float32)
    mlx_model, tokenizer = load(str(demo_bfloat16_folder))
    mlx_model.set_dtype(mx.float32)
    ours = Qwen3ModelWeek1(mlx_model)
    for question in QUESTIONS:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            enable_thinking=enable_thinking,
        )
        with torch.no_grad():
            sequence = theirs.generate(
                torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False
            )[0].tolist()
        expected = sequence[len(prompt) :]
        # One causal forward pass over prompt and output predicts each output token from its prefix.
        logits = ours(mx.array([sequence]))[0, len(prompt) - 1 : -1]
        assert mx.argmax(logits, axis=-1).tolist() == expected, (
            f"greedy tokens for {question!r} differ from those of transformers"
        )


@pytest.mark.slow
def test_demo_model_logits_bfloat16(demo_bfloat16_folder):
    theirs = hugging_face(demo_bfloat16_folder, torch.bfloat16)
    mlx_model, tokenizer = load(str(demo_bfloat16_folder))
    ids = tokenizer.encode("The KV cache keeps keys and values.")
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits.float().numpy()
    actual = as_numpy(Qwen3ModelWeek1(mlx_model)(mx.array([ids])))
    # 5 % of the largest logit: tiny-llm and transformers round to bfloat16 after different
    # operations, and the differences add up over eight layers.
    assert np.abs(actual - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("H_q", "H", "head_dim"), [(4, 2, 16), (6, 3, 10), (2, 1, 32)])
def test_random_model_logits_float32(tmp_path, tied, H_q, H, head_dim):
    torch.manual_seed(0)
    sizes = SIZES | heads(H_q, H, head_dim)
    config = transformers.Qwen3Config(**sizes, tie_word_embeddings=tied, rope_theta=10_000.0)
    theirs = random_model(transformers.Qwen3ForCausalLM(config))
    theirs.save_pretrained(tmp_path)

    from mlx_lm.utils import load_model

    ours = Qwen3ModelWeek1(load_model(tmp_path)[0])
    for ids in token_prompts(count=5, length=5, vocab_size=211):
        ids = (ids * 20)[:77]
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits.numpy()
        np.testing.assert_allclose(as_numpy(ours(mx.array([ids]))), expected, atol=1e-4)


SIZES = {
    "vocab_size": 211,
    "hidden_size": 40,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
ROPE = {"rope_type": "default"}
STRETCHED = {"original_max_position_embeddings": 64}


def heads(H_q: int, H: int, head_dim: int) -> dict[str, Any]:
    return {"num_attention_heads": H_q, "num_key_value_heads": H, "head_dim": head_dim}


def experts(number: int, chosen: int, size: int, **fields: Any) -> dict[str, Any]:
    sizes = {"num_experts": number, "num_experts_per_tok": chosen, "moe_intermediate_size": size}
    return sizes | fields


def layers(*types: str, **fields: Any) -> dict[str, Any]:
    return {"num_hidden_layers": len(types), "layer_types": [*types], **fields}


def windows(size: int, **fields: Any) -> dict[str, Any]:
    return {"use_sliding_window": True, "sliding_window": size, **fields}


SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA4 = {"sliding_window": 13, "final_logit_softcapping": 3.0}

# (family's name in transformers, config in addition to `SIZES`). The models have 1 to 8 query heads
# per KV head.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3-yarn": (
        "Qwen3",
        {**heads(4, 1, 16), "tie_word_embeddings": True, "rope_parameters": {**YARN, **STRETCHED}},
    ),
    # DeepSeek-R1-0528-Qwen3-8B: transformers ignores `attn_factor`
    "qwen3-yarn-attn_factor": (
        "Qwen3",
        {**heads(4, 2, 16), "rope_parameters": {**YARN, **STRETCHED, "attn_factor": 0.8782}},
    ),
    "qwen3-biases": ("Qwen3", {**heads(3, 3, 14), "attention_bias": True}),
    "qwen2": ("Qwen2", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "qwen2-tied-yarn": (
        "Qwen2",
        {
            "num_attention_heads": 10,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "rope_parameters": {**YARN, **STRETCHED, "beta_fast": 8, "attention_factor": 1.5},
        },
    ),
    "llama-2": ("Llama", {"num_attention_heads": 4}),
    "llama-3.2": (
        "Llama",
        {
            **heads(10, 2, 18),
            "tie_word_embeddings": True,
            "rope_parameters": {**LLAMA3, **STRETCHED},
        },
    ),
    "llama-biases-linear": (
        "Llama",
        {
            **heads(8, 1, 12),
            "attention_bias": True,
            "mlp_bias": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0},
        },
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        {**heads(4, 2, 12), **experts(5, 2, 24, norm_topk_prob=True)},
    ),
    "qwen3_moe-and-mlp": (
        "Qwen3Moe",
        {
            **heads(4, 4, 16),
            **experts(16, 4, 20, mlp_only_layers=[1], tie_word_embeddings=True),
        },
    ),
    "qwen3_moe-top-1": (
        "Qwen3Moe",
        {**heads(2, 1, 16), **experts(4, 1, 24, decoder_sparse_step=2)},
    ),
    "mistral": ("Mistral", {**heads(8, 1, 34), "sliding_window": None}),
    "mistral-window": ("Mistral", {**heads(10, 5, 8), "sliding_window": 19}),
    "qwen2-windows-in-last-layers": (
        "Qwen2",
        {
            "num_attention_heads": 10,
            "num_key_value_heads": 5,
            **windows(16, max_window_layers=1),
        },
    ),
    "qwen3-windows-by-layer": (
        "Qwen3",
        {**heads(4, 2, 16), **windows(7), **layers(SLIDING, FULL, SLIDING)},
    ),
    "gpt_oss": (
        "GptOss",
        {
            **heads(6, 2, 14),
            "num_hidden_layers": 4,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 19,
            "rope_parameters": {**YARN, **STRETCHED, "truncate": False},
        },
    ),
    "qwen3_moe-window": (
        "Qwen3Moe",
        {**heads(4, 2, 12), **experts(5, 2, 24), **windows(33)},
    ),
    "gemma3": (
        "Gemma3",
        {
            **heads(4, 2, 18),
            **layers(SLIDING, FULL, SLIDING, sliding_window=13, query_pre_attn_scalar=12),
        },
    ),
    "smollm3": (
        "SmolLM3",
        {**heads(4, 2, 10), "no_rope_layers": [1, 0, 1], "pad_token_id": None},
    ),
    "phi3": (
        "Phi3",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "pad_token_id": None,
            "rope_parameters": {**ROPE, "rope_theta": 10000.0, "partial_rotary_factor": 0.6},
        },
    ),
    "granite": (
        "Granite",
        {
            **heads(4, 1, 10),
            "embedding_multiplier": 12,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.2,
            "logits_scaling": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    # one KV head, a window of most of the context, and a pattern that leaves all layers with it
    "gemma3-linear": (
        "Gemma3",
        {
            **heads(5, 1, 14),
            "sliding_window": 70,
            "sliding_window_pattern": 2,
            "rope_parameters": {
                FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                SLIDING: {**ROPE, "rope_theta": 2e4},
            },
        },
    ),
    # Gemma 4 E2B: per-layer inputs, and wider layers that read earlier layers' keys and values
    "gemma4-e2b": (
        "Gemma4",
        {
            **heads(4, 1, 14),
            **GEMMA4,
            **layers(*[SLIDING, SLIDING, FULL] * 2, FULL),
            "global_head_dim": 22,
            "num_kv_shared_layers": 4,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 6,
            "vocab_size_per_layer_input": 211,
        },
    ),
    # Gemma 4 E4B, without a window and with the default layer types
    "gemma4-e4b": (
        "Gemma4",
        {
            **heads(6, 2, 10),
            **GEMMA4,
            "num_hidden_layers": 8,
            "sliding_window": 256,
            "global_head_dim": 512,
            "num_kv_shared_layers": 1,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 211,
        },
    ),
    # Gemma 4 31B: full layers with other KV heads, whose keys are also their values
    "gemma4-31b": (
        "Gemma4",
        {
            **heads(6, 3, 18),
            **GEMMA4,
            **layers(SLIDING, FULL, SLIDING, FULL, attention_k_eq_v=True),
            "global_head_dim": 36,
            "num_global_key_value_heads": 2,
            "hidden_size_per_layer_input": 0,
            "rope_parameters": {
                FULL: {"rope_type": "proportional", "rope_theta": 5e4, "factor": 2.0}
                | {"partial_rotary_factor": 0.4},
                SLIDING: {**ROPE, "rope_theta": 2e4},
            },
        },
    ),
    # Gemma 4 12B: fields that its configs lack
    "gemma4-12b": (
        "Gemma4Unified",
        {
            **heads(4, 2, 16),
            **GEMMA4,
            **layers(SLIDING, FULL, FULL, global_head_dim=34, attention_k_eq_v=True),
        },
    ),
    # Gemma 4 26B-A4B: experts beside the MLP
    "gemma4-moe": (
        "Gemma4",
        {
            **heads(4, 2, 16),
            **GEMMA4,
            **layers(SLIDING, SLIDING, FULL, global_head_dim=24, attention_k_eq_v=True),
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 7,
            "top_k_experts": 3,
            "moe_intermediate_size": 20,
        },
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """Random float32 model: (transformers model, our paged model, weights)."""
    name, fields = FAMILIES[request.param]
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")
    theirs = random_model(model(model.config_class(**{**SIZES, **fields})))
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    weights = read_checkpoint(folder, json.loads((folder / "config.json").read_text()))
    return theirs, serving_model(request.param, weights, page_size=16), weights


def assert_same_logits(weights: Any, theirs: Any) -> None:
    ids = random_ids(77)
    ours = sequence_logits(serving_model("it", weights, page_size=16), ids)
    np.testing.assert_allclose(as_numpy(ours), transformers_logits(theirs, ids), atol=1e-4)


def test_family_logits_float32(family):
    theirs, ours, _ = family
    ids = random_ids(77)
    expected = transformers_logits(theirs, ids)
    whole = sequence_logits(ours, ids)
    np.testing.assert_allclose(as_numpy(whole), expected, atol=1e-4, err_msg="whole")
    chunked = sequence_logits(ours, ids, [33, 34, 70, 71, 72, 73, 77])
    np.testing.assert_allclose(as_numpy(chunked), expected, atol=1e-4, err_msg="chunked")


def test_family_logits_in_a_ragged_batch_float32(family):
    theirs, ours, _ = family
    prompts = [random_ids(50), random_ids(9), random_ids(21)]
    storage, done = ours.create_paged_storage(12), [0, 0, 0]
    actual: list[list[np.ndarray]] = [[], [], []]
    for new in ((30, 4, 20), (19, 4, 1), (1, 1, 0)):
        spans = [range(at, at + n) for at, n in zip(done, new, strict=True)]
        done = [span.stop for span in spans]
        batch = RaggedBatch(
            [p for span in spans for p in span],
            [(4 * s + p // 16) * 16 + p % 16 for s, span in enumerate(spans) for p in span],
            [0, new[0], new[0] + new[1], sum(new)],
            done,
            [[4 * s + page for page in range(4)] for s in range(3)],
        )
        ids = [prompt[p] for prompt, span in zip(prompts, spans, strict=True) for p in span]
        rows = as_numpy(ours.ragged_logits(ids, batch, range(len(ids)), storage))
        for s in range(3):
            actual[s].append(rows[sum(new[:s]) : sum(new[: s + 1])])
    for s, prompt in enumerate(prompts):
        np.testing.assert_allclose(
            np.concatenate(actual[s]),
            transformers_logits(theirs, prompt),
            atol=1e-4,
            err_msg=f"{s}",
        )


def test_family_greedy_tokens(family, demo):
    theirs, _, weights = family
    engine = LLM((weights, demo[1]), block_size=16)
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    prompts = [random_ids(9), random_ids(30)]
    for output in engine.generate(prompts, params, use_tqdm=False):
        assert output.error is None
        prompt, answer = output.prompt_token_ids, output.token_ids
        # One causal forward pass predicts each output token from its prefix.
        expected = transformers_logits(theirs, [*prompt, *answer])[len(prompt) - 1 : -1].argmax(-1)
        assert answer == expected.tolist()
        assert len(answer) == 64


VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 40,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
MROPE = {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}


def swap_experts(name: str, tensor: mx.array) -> mx.array:
    return tensor.swapaxes(1, 2) if ".experts." in name else tensor


# Layouts of Qwen3-VL's tensors: (renames prefixes, changes tensors).
VL_LAYOUTS = {
    "transformers": ({}, lambda name, tensor: tensor),
    "hub": ({}, swap_experts),  # experts X×E×2I and X×I×E
    "mlx-vlm": (
        {
            "model.language_model.": "language_model.model.",
            "lm_head.": "language_model.lm_head.",
            "model.visual.": "vision_tower.",
        },
        lambda name, tensor: tensor,
    ),
}


@pytest.mark.parametrize("layout", VL_LAYOUTS)
@pytest.mark.parametrize("kind", ["Qwen3VL", "Qwen3VLMoe"])
def test_text_of_qwen3_vl(tmp_path, kind, layout):
    torch.manual_seed(0)
    text = {
        **SIZES,
        **heads(4, 2, 16),
        **(experts(5, 2, 24) if "Moe" in kind else {}),
        "rope_parameters": {**MROPE, "rope_theta": 5e5},
    }
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=VISION, tie_word_embeddings=False
    )
    theirs = random_model(getattr(transformers, f"{kind}ForConditionalGeneration")(config))
    theirs.save_pretrained(tmp_path)
    file = str(tmp_path / "model.safetensors")
    renames, change = VL_LAYOUTS[layout]
    tensors = {}
    for name, tensor in dict(mx.load(file)).items():
        new = name
        for prefix, other in renames.items():
            new = new.replace(prefix, other) if new.startswith(prefix) else new
        tensors[new] = change(name, tensor)
    mx.eval(tensors)
    mx.save_safetensors(file, tensors)
    weights = read_checkpoint(tmp_path, json.loads((tmp_path / "config.json").read_text()))
    assert weights.num_skipped == sum("visual" in n or "vision" in n for n in tensors) > 0
    assert_same_logits(weights, theirs)


def test_text_of_multimodal_gemma3(tmp_path):
    torch.manual_seed(0)
    sizes = {**SIZES, **heads(4, 2, 16), "sliding_window": 13, "pad_token_id": None}
    vision = {**VISION, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 56}
    config = transformers.Gemma3Config(text_config=sizes, vision_config=vision)
    theirs = random_model(transformers.Gemma3ForConditionalGeneration(config))
    theirs.save_pretrained(tmp_path)
    weights = read_checkpoint(tmp_path, json.loads((tmp_path / "config.json").read_text()))
    assert weights.num_skipped > 0
    assert_same_logits(weights, theirs)


def test_gemma3_saved_by_mlx_lm(tmp_path):
    """mlx_lm stores norms as w, too."""
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_model

    torch.manual_seed(0)
    config = transformers.Gemma3TextConfig(**SIZES, **heads(4, 2, 16), pad_token_id=None)
    random_model(transformers.Gemma3ForCausalLM(config)).save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    expected = dict(tree_flatten(read_checkpoint(tmp_path, fields).parameters()))
    mx.eval(expected)
    stored = dict(tree_flatten(load_model(tmp_path)[0].parameters()))
    mx.eval(stored)
    file = str(tmp_path / "model.safetensors")
    mx.save_safetensors(file, stored, metadata={"format": "mlx"})
    actual = dict(tree_flatten(read_checkpoint(tmp_path, fields).parameters()))
    assert actual.keys() == expected.keys()
    assert all(mx.array_equal(actual[name], expected[name]) for name in actual)


def mxfp4_tensors(theirs: Any, layout: str) -> dict[str, mx.array]:
    """A gpt-oss model's tensors with MXFP4 experts; `theirs` gets the dequantized experts."""
    tensors = {name: mx.array(x.numpy()) for name, x in theirs.state_dict().items()}
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        matrices = tensors.pop(name).swapaxes(1, 2)  # X×O×I
        words, scales = mx.quantize(matrices, mode="mxfp4")
        exact = mx.dequantize(words, scales, mode="mxfp4", dtype=mx.float32).swapaxes(1, 2)
        theirs.state_dict()[name].copy_(torch.from_numpy(np.array(exact)))
        X, O, _ = words.shape
        tensors[f"{name}_blocks"] = words.view(mx.uint8).reshape(X, O, -1, 16)
        tensors[f"{name}_scales"] = scales
    if layout == "mlx":
        gpt_oss = pytest.importorskip("mlx_lm.models.gpt_oss")
        tensors = gpt_oss.Model.sanitize(None, tensors)
    return tensors


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("layout", ["hugging_face", "mlx"])
def test_mxfp4_experts_of_gpt_oss(tmp_path, layout, dtype):
    torch.manual_seed(0)
    fields = FAMILIES["gpt_oss"][1]
    config = transformers.GptOssConfig(
        **{**SIZES, **fields, "hidden_size": 96, "intermediate_size": 160}
    )
    theirs = random_model(transformers.GptOssForCausalLM(config))
    tensors = mxfp4_tensors(theirs, layout)
    tensors = {
        k: x if x.dtype in (mx.uint8, mx.uint32) else x.astype(dtype) for k, x in tensors.items()
    }
    mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors)
    quantization = {
        "hugging_face": {"quantization_config": {"quant_method": "mxfp4"}},
        "mlx": {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}},
    }
    weights = read_checkpoint(tmp_path, {**config.to_dict(), **quantization[layout]})
    model = serving_model("gpt-oss", weights, page_size=16)
    # Activations exceed float16, so a float16 checkpoint runs in bfloat16, too.
    assert model.supports_graph_capture == (dtype != mx.float32)
    ids = random_ids(77)
    actual = as_numpy(sequence_logits(model, ids, [30, 31, 32, 77]))
    expected = transformers_logits(theirs, ids)
    # Routing is discontinuous, so 16-bit logits of single tokens may differ more.
    error = np.abs(actual - expected)
    if dtype == mx.float32:
        assert error.max() < 1e-4
    else:
        assert np.median(error) < 0.01 * np.abs(expected).max()


def test_fused_experts_of_qwen3_moe(tmp_path):
    """transformers 5 stores `experts.gate_up_proj`, X×2I×E, without its conversion on saving."""
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(**SIZES, **heads(4, 2, 16), **experts(5, 2, 24))
    theirs = random_model(transformers.Qwen3MoeForCausalLM(config))
    tensors = {name: mx.array(x.numpy()) for name, x in theirs.state_dict().items()}
    assert tensors["model.layers.0.mlp.experts.gate_up_proj"].shape == (5, 48, 40)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors)
    assert_same_logits(read_checkpoint(tmp_path, config.to_dict()), theirs)
