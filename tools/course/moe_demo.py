"""`pdm run mixture`: the demo model as a mixture of experts, for day 6.1.

Every MLP becomes eight identical experts, with a random router that selects two per token. Some
mixtures are initialized in this way ("sparse upcycling"), and training differentiates the experts.
Without training, a token's experts are identical and their routing weights sum to 1. If routing,
sorting and summation are correct, the mixture thus generates the demo model's output, otherwise
noise.

Source: Komatsuzaki et al., "Sparse Upcycling" (2022), arXiv 2212.05055.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

import mlx.core as mx

from tiny_llm.demo import TARGET_PATH

from .tree import ROOT, display_path

NUM_EXPERTS, TOP_K = 8, 2
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def write_moe_demo(folder: Path, seed: int = 0) -> None:
    """Writes or replaces the mixture's checkpoint; `seed` is the random router's."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in TARGET_PATH.iterdir():
        if "token" in file.name or file.suffix == ".jinja" or file.name.startswith("generation"):
            shutil.copyfile(file, folder / file.name)
    config = json.loads((TARGET_PATH / "config.json").read_text(encoding="utf-8"))
    config |= {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": NUM_EXPERTS,
        "num_experts_per_tok": TOP_K,
        "moe_intermediate_size": config["intermediate_size"],
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    weights = moe_weights_from(mx.load(str(TARGET_PATH / "model.safetensors")), config, seed)  # type: ignore[arg-type]
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})


def moe_weights_from(
    weights: dict[str, mx.array], config: dict[str, int], seed: int
) -> dict[str, mx.array]:
    """Converts a dense model's tensors to those of the mixture with `config`."""
    tensors: dict[str, mx.array] = {}
    for name, array in weights.items():
        parts = name.split(".")
        if parts[-2] in PROJECTIONS:  # for example …mlp.up_proj.scales
            name = ".".join([*parts[:-2], "switch_mlp", *parts[-2:]])
            array = mx.repeat(array[None], NUM_EXPERTS, axis=0)  # axis 0: expert
        tensors[name] = array
    keys = mx.random.split(mx.random.key(seed), config["num_hidden_layers"])
    for layer, key in enumerate(keys):
        router = mx.random.normal((NUM_EXPERTS, config["hidden_size"]), mx.bfloat16, key=key)
        tensors[f"model.layers.{layer}.mlp.gate.weight"] = router
    return tensors


def main(argv: list[str] | None = None) -> int:
    """Writes the checkpoint and prints its path."""
    parser = argparse.ArgumentParser(
        prog="mixture", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "mixture")
    args = parser.parse_args(argv)
    if args.folder.exists() and not (args.folder / "config.json").exists():
        parser.error(f"{args.folder} exists and is not a checkpoint; give another folder")
    write_moe_demo(args.folder)
    print(
        f"wrote {display_path(args.folder.resolve())}: the demo model, {NUM_EXPERTS} equal experts "
        f"per MLP, {TOP_K} per token"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
