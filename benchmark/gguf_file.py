"""Writes a checkpoint's weights as a GGUF file for llama.cpp.

    python -m benchmark.gguf_file FOLDER FILE.gguf --type q4_0

With `q4_0`, MLX-quantized weights are dequantized and requantized, because the layouts differ: Q4_0
has a scale and no bias per 32 weights (4.5 bits per weight), MLX a scale and a bias per 128 (4.25).
`f32` is lossless.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from . import gguf_hybrid
from .command import benchmark_parser

Q4_0_BLOCK = 32
TYPES = ("q4_0", "f32")

LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.switch_mlp.gate_proj": "ffn_gate_exps",
    "mlp.switch_mlp.up_proj": "ffn_up_exps",
    "mlp.switch_mlp.down_proj": "ffn_down_exps",
}
MODEL_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
FLOAT32 = ("ffn_gate_inp.weight", *gguf_hybrid.FLOAT32)  # llama.cpp requires these in float32


def gguf_name(name: str, hybrid: bool = False) -> str:
    """llama.cpp's name for a weight of a Qwen3 or Qwen3.5 checkpoint."""
    stem = name.removesuffix(".weight")
    if stem in MODEL_NAMES:
        return f"{MODEL_NAMES[stem]}.weight"
    index, _, layer_stem = stem.removeprefix("model.layers.").partition(".")
    if layer_stem in gguf_hybrid.VECTOR_NAMES:
        return f"blk.{index}.{gguf_hybrid.VECTOR_NAMES[layer_stem]}"
    names = LAYER_NAMES | gguf_hybrid.LAYER_NAMES if hybrid else LAYER_NAMES
    return f"blk.{index}.{names[layer_stem]}.weight"


def pack_q4_0(rows: np.ndarray) -> np.ndarray:
    """Quantizes to Q4_0: each block of 32 weights becomes a float16 scale d and 16 bytes.

    weight ≈ (q − 8)·d with q in 0 … 15, and d such that the largest weight by magnitude has q = 0.
    Byte i holds weight i of the block in its low nibble and weight i + 16 in its high nibble.

    Shapes: ...×O×I float32 (outputs × inputs, I a multiple of 32) → ...×O×(I/32·18) uint8.
    """
    *leading, I = rows.shape
    blocks = rows.reshape(-1, Q4_0_BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], axis=1)
    scale = largest / -8
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale != 0)
    q = np.minimum(15, blocks * inverse + 8.5).astype(np.uint8)
    nibbles = q[:, : Q4_0_BLOCK // 2] | q[:, Q4_0_BLOCK // 2 :] << 4
    packed = np.concatenate([scale.astype(np.float16).view(np.uint8), nibbles], axis=1)
    return packed.reshape(*leading, I // Q4_0_BLOCK * packed.shape[1])


def plain_weights(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yields each weight's name and dequantized float32 values."""
    quantization = json.loads((folder / "config.json").read_text()).get("quantization")
    for file in sorted(folder.glob("*.safetensors")):
        tensors: Any = mx.load(str(file))
        for name in [name for name in tensors if not name.endswith((".scales", ".biases"))]:
            weight = tensors[name]
            stem = name.removesuffix(".weight")
            if f"{stem}.scales" in tensors:
                weight = mx.dequantize(
                    weight,
                    tensors[f"{stem}.scales"],
                    tensors[f"{stem}.biases"],
                    group_size=quantization["group_size"],
                    bits=quantization["bits"],
                )
            yield name, np.array(weight.astype(mx.float32))


def add_vocabulary(writer: Any, folder: Path, vocab_size: int) -> None:
    """Writes the vocabulary of a byte-level BPE `tokenizer.json`, such as Qwen3's."""
    import gguf

    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    model = tokenizer["model"]
    tokens = [f"[PAD{token_id}]" for token_id in range(vocab_size)]
    types = [gguf.TokenType.UNUSED] * vocab_size
    for token, token_id in model["vocab"].items():
        tokens[token_id], types[token_id] = token, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds = {True: gguf.TokenType.CONTROL, False: gguf.TokenType.USER_DEFINED}
        types[added["id"]] = kinds[added["special"]]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    eos = json.loads((folder / "config.json").read_text()).get("eos_token_id")
    if eos is not None:
        writer.add_eos_token_id(eos[0] if isinstance(eos, list) else eos)


def write_gguf(folder: Path, file: Path, kind: str = "q4_0", with_vocabulary: bool = False) -> None:
    """Writes a Qwen3, Qwen3 MoE (no dense layers) or Qwen3.5 checkpoint as GGUF.

    Args:
        file: output, renamed to its final name once complete.
        kind: type of the matrices, one of `TYPES`; vectors and `FLOAT32` are always float32.
        with_vocabulary: whether to include the tokenizer, which `llama-server` needs.
    """
    import gguf

    config = json.loads((folder / "config.json").read_text())
    partial = file.with_suffix(".partial")
    has_experts, hybrid = "num_experts" in config, gguf_hybrid.is_hybrid(config)
    architecture = "qwen35" if hybrid else "qwen3moe" if has_experts else "qwen3"
    writer = gguf.GGUFWriter(str(partial), architecture)
    writer.add_name(folder.name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    if hybrid:
        gguf_hybrid.add_parameters(writer, config)
    else:
        writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if has_experts:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if with_vocabulary:
        add_vocabulary(writer, folder, config["vocab_size"])
    else:
        writer.add_tokenizer_model("none")
    packed_type = gguf.GGMLQuantizationType.Q4_0
    for name, weight in plain_weights(folder):
        target_name = gguf_name(name, hybrid)
        if hybrid:
            weight = gguf_hybrid.convert_weight(target_name, weight, config)
        if weight.ndim > 1 and kind == "q4_0" and not target_name.endswith(FLOAT32):
            writer.add_tensor(target_name, pack_q4_0(weight), raw_dtype=packed_type)
        else:
            writer.add_tensor(target_name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(file)


def main() -> int:
    """Runs the command and returns the exit status."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--type", choices=TYPES, default="q4_0")
    args = parser.parse_args()
    write_gguf(args.folder, args.file, args.type)
    print(args.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
