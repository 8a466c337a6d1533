"""Writes a checkpoint with random weights in a real model's shapes.

Speed and memory use depend on shapes, not on values, so every model size can be measured offline:

    python -m benchmark.make_checkpoint --shape qwen3-0.6b --bits 4 --group-size 128
    python -m benchmark.make_checkpoint --config config.json --bits 4 --output FOLDER
"""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from rich.progress import track

from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.checkpoint.dummy import random_vector
from tiny_llm.models.checkpoint.tensor_shapes import matrix_shapes, vector_shapes
from tiny_llm.models.families.registry import read_config

from .command import benchmark_parser

# Hidden size, layers, intermediate size, query heads, KV heads, tied embeddings; from the
# config.json of Qwen/Qwen3-*-MLX-4bit.
SHAPES = {
    "qwen3-0.6b": (1024, 28, 3072, 16, 8, True),
    "qwen3-1.7b": (2048, 28, 6144, 16, 8, True),
    "qwen3-4b": (2560, 36, 9728, 32, 8, True),
    "qwen3-8b": (4096, 36, 12288, 32, 8, False),
}
# Hidden size, layers, intermediate size, query heads, KV heads, linear value heads; from the
# text_config of Qwen/Qwen3.5-*. All have 16 linear key heads and tied embeddings.
HYBRID_SHAPES = {
    "qwen3.5-0.8b": (1024, 24, 3584, 8, 2, 16),
    "qwen3.5-4b": (2560, 32, 9216, 16, 4, 32),
}
VOCAB_SIZE = 151_936
GROUP_SIZES = (32, 64, 128)
SHARD_BYTES = 2_000_000_000
TOKENIZER_FILES = ("tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def qwen3_config(
    hidden_size: int,
    num_hidden_layers: int,
    intermediate_size: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    tie_word_embeddings: bool,
    head_dim: int = 128,
    vocab_size: int = VOCAB_SIZE,
) -> dict[str, Any]:
    """`config.json` of a Qwen3 model with the given dimensions."""
    return {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": hidden_size,
        "num_hidden_layers": num_hidden_layers,
        "intermediate_size": intermediate_size,
        "num_attention_heads": num_attention_heads,
        "num_key_value_heads": num_key_value_heads,
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "tie_word_embeddings": tie_word_embeddings,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": "bfloat16",
    }


def qwen3_5_config(
    hidden_size: int,
    num_hidden_layers: int,
    intermediate_size: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    linear_num_value_heads: int,
) -> dict[str, Any]:
    """`config.json` of a text-only Qwen3.5 model with the given dimensions."""
    config = qwen3_config(
        hidden_size,
        num_hidden_layers,
        intermediate_size,
        num_attention_heads,
        num_key_value_heads,
        tie_word_embeddings=True,
        head_dim=256,
        vocab_size=248_320,
    )
    rope = {"rope_type": "default", "rope_theta": config.pop("rope_theta") * 10}
    return {
        **config,
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForCausalLM"],
        "max_position_embeddings": 262_144,
        "rope_parameters": {**rope, "partial_rotary_factor": 0.25},
        "full_attention_interval": 4,
        "attn_output_gate": True,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": linear_num_value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }


def shape_config(name: str) -> dict[str, Any]:
    """`config.json` for a key of `SHAPES` or `HYBRID_SHAPES`."""
    if name in HYBRID_SHAPES:
        return qwen3_5_config(*HYBRID_SHAPES[name])
    return qwen3_config(*SHAPES[name])


def weight_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the name and shape of every weight of a supported model."""
    model = read_config(config)
    for path, shape in matrix_shapes(model):
        yield f"{path}.weight", shape
    yield from vector_shapes(model)


def normal_matrix(shape: tuple[int, ...]) -> mx.array:
    """Random [experts ×] outputs × inputs matrix of variance 1 / inputs."""
    return mx.random.normal(shape) * shape[-1] ** -0.5


def write_checkpoint(
    folder: Path,
    config: dict[str, Any],
    bits: int | None = None,
    group_size: int = 128,
    seed: int = 0,
    dtype: mx.Dtype = mx.bfloat16,
    shard_bytes: int = SHARD_BYTES,
    matrix: Callable[[tuple[int, ...]], mx.array] = normal_matrix,
) -> None:
    """Writes a checkpoint folder, with one shard in memory at a time.

    Args:
        config: output of `shape_config`, or a parsed `config.json`; its quantization is replaced.
        bits: bits per weight of the matrices; None leaves them in `dtype`.
        dtype: dtype of unquantized weights, scales and biases.
        shard_bytes: size in bytes at which a new file is started.
        matrix: draws a matrix of a given shape, [experts ×] outputs × inputs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {name: value for name, value in config.items() if "quantization" not in name}
    if bits is not None:
        quantization = {"group_size": group_size, "bits": bits, "mode": "affine"}
        config = {**config, "quantization": quantization, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    _write_tokenizer(folder, config["vocab_size"])

    shard: dict[str, mx.array] = {}
    shards: list[list[str]] = []
    total_bytes = 0
    mx.random.seed(seed)
    vectors = {name for name, _ in vector_shapes(read_config(config))}
    for name, shape in track(list(weight_shapes(config)), f"writing {folder.name}", transient=True):
        if name in vectors:
            shard[name] = random_vector(name, shape, dtype)
        else:
            shard.update(_stored(name, matrix(shape).astype(dtype), bits, group_size))
        if sum(tensor.nbytes for tensor in shard.values()) >= shard_bytes:
            total_bytes += _save_shard(folder, shard, shards)
    if shard:
        total_bytes += _save_shard(folder, shard, shards)
    _write_index(folder, shards, total_bytes)


def _stored(name: str, weight: mx.array, bits: int | None, group_size: int) -> dict[str, mx.array]:
    """Checkpoint tensors of one matrix, quantized if `bits` is given."""
    if bits is None:
        return {name: weight}
    packed, scales, biases = mx.quantize(weight, group_size=group_size, bits=bits)
    stem = name.removesuffix(".weight")
    tensors = {f"{stem}.weight": packed, f"{stem}.scales": scales, f"{stem}.biases": biases}
    mx.eval(tensors)  # evaluated to free the unquantized weight
    return tensors


def _save_shard(folder: Path, shard: dict[str, mx.array], shards: list[list[str]]) -> int:
    """Writes and clears `shard`, adds its names to `shards`; returns its size."""
    mx.save_safetensors(
        str(folder / f"shard-{len(shards)}.safetensors"), shard, metadata={"format": "mlx"}
    )
    shards.append(list(shard))
    size = sum(tensor.nbytes for tensor in shard.values())
    shard.clear()
    return size


def _write_index(folder: Path, shards: list[list[str]], total_bytes: int) -> None:
    """Renames the shards to the Hub's numbered names and writes the index."""
    weight_map = {}
    for index, names in enumerate(shards):
        file = f"model-{index + 1:05}-of-{len(shards):05}.safetensors"
        if len(shards) == 1:
            file = "model.safetensors"
        (folder / f"shard-{index}.safetensors").rename(folder / file)
        weight_map.update(dict.fromkeys(names, file))
    content = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(content, indent=2) + "\n")


def _write_tokenizer(folder: Path, vocab_size: int) -> None:
    """Writes the demo's tokenizer, padded so that every id decodes to text."""
    tokenizer = json.loads((TARGET_PATH / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    # The vocabulary must list added tokens; otherwise they would get ids after the padding.
    vocab.update({token["content"]: token["id"] for token in tokenizer["added_tokens"]})
    vocab.update({f"<unused_{i}>": i for i in range(len(vocab), vocab_size)})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    for name in TOKENIZER_FILES:
        if (TARGET_PATH / name).exists():
            shutil.copy(TARGET_PATH / name, folder / name)


def main() -> int:
    """Runs the command and returns the exit status."""
    parser = benchmark_parser(__doc__)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--shape", choices=[*SHAPES, *HYBRID_SHAPES])
    group.add_argument("--config", type=Path, help="config.json of any supported model")
    parser.add_argument(
        "--bits", type=int, choices=(4, 8), help="bits per weight (default: bfloat16)"
    )
    parser.add_argument("--group-size", type=int, choices=GROUP_SIZES, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="default: checkpoints/<shape>-<format>")
    args = parser.parse_args()
    if args.config is not None and args.output is None:
        parser.error("--config requires --output.")
    kind = "bf16" if args.bits is None else f"{args.bits}bit-g{args.group_size}"
    folder = args.output or Path("checkpoints") / f"{args.shape}-{kind}"
    config = json.loads(args.config.read_text()) if args.config else shape_config(args.shape)
    write_checkpoint(folder, config, args.bits, args.group_size, args.seed)
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
