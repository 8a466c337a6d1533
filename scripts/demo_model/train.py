"""Trains the target, draft or hybrid model for a given time.

    python -m demo_model.train --which target --tokenizer FOLDER --out FOLDER --minutes 60

The learning rate is a function of the elapsed share of `--minutes`: a short warm-up, a constant
part and a long decay to zero. In the last part, the weights are quantized at every step (see
`optimizer.py`). The hybrid model is trained in rows of 1,536 tokens, on a GPU with `--device cuda`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch.nn import functional

from .batches import MAX_LENGTH, Batch, TrainingBatches
from .hybrid import HybridConfig, Qwen3_5
from .model import CONFIGS, Qwen3, rope_tables
from .optimizer import MasterWeights
from .packing import PackedBatches
from .seeds import CORPUS_SEED, WEIGHT_SEED

# Shares of the training time: end of the warm-up, end of prompt tokens in the loss, start of the
# learning rate's decay, start of quantization.
WARM_UP, PROMPT_UNTIL, DECAY_FROM, QUANTIZE_FROM = 0.01, 0.35, 0.45, 0.70
HYBRID = "hybrid"


def rate_at(share: float) -> float:
    """Learning-rate factor, 0 to 1, after a share of the training time."""
    if share < WARM_UP:
        return max(share / WARM_UP, 0.01)
    if share < DECAY_FROM:
        return 1.0
    return max(0.0, (1 - share) / (1 - DECAY_FROM))


def losses_of(model: Qwen3 | Qwen3_5, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the weighted cross-entropy to minimize, and the mean cross-entropy of the targets."""
    hidden = model(batch.ids, batch.positions, batch.groups)
    logits = model.logits(hidden.index_select(0, batch.target_positions))
    losses = functional.cross_entropy(logits.float(), batch.labels, reduction="none")
    is_answer = batch.weights == 1
    count = is_answer.sum()
    return (losses * batch.weights).sum() / count, (losses.detach() * is_answer).sum() / count


def build(which: str, compiled: bool) -> Qwen3 | Qwen3_5:
    """Builds a bfloat16 model with random weights; RoPE's tables stay float32."""
    if which == HYBRID:
        hybrid = Qwen3_5(HybridConfig())
        hybrid.init_weights(WEIGHT_SEED)
        return hybrid.cast(torch.bfloat16)
    model = Qwen3(CONFIGS[which])
    model.init_weights(WEIGHT_SEED)
    model = model.bfloat16()
    model.cos, model.sin = rope_tables(model.config)
    if compiled:
        model.compile_halves()
    return model


def batches_of(arguments: argparse.Namespace) -> TrainingBatches | PackedBatches:
    """Source of training batches for the model."""
    path = arguments.tokenizer / "tokenizer.json"
    if arguments.which == HYBRID:
        rows = max(1, arguments.tokens_per_step // MAX_LENGTH)
        return PackedBatches(path, arguments.seed, rows, MAX_LENGTH, arguments.workers)
    tokenizer = Tokenizer.from_file(str(path))
    return TrainingBatches(
        tokenizer, arguments.seed, arguments.tokens_per_step, arguments.is_continued
    )


def save(path: Path, master: MasterWeights, which: str, progress: dict) -> None:
    """Writes master weights and training progress atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    torch.save({"which": which, "master": master.master, "progress": progress}, partial)
    partial.rename(path)


def train(arguments: argparse.Namespace) -> None:
    """Trains for the given number of minutes."""
    torch.set_num_threads(arguments.threads)
    torch.set_float32_matmul_precision("high")  # allows TF32 on a GPU
    batches = batches_of(arguments)
    model = build(arguments.which, not arguments.eager).to(arguments.device)
    master = MasterWeights(model)
    step = tokens = examples = 0
    if arguments.resume:
        saved = torch.load(arguments.resume, weights_only=True, map_location=arguments.device)
        master.load(saved["master"])
        step, tokens, examples = (saved["progress"][k] for k in ("step", "tokens", "examples"))
    elif arguments.start:
        from .export import weights_of  # imports mlx, which other runs do not need

        master.load(weights_of(arguments.start))
    tokens_before = tokens
    begin = last_save = time.monotonic()
    start = begin - 60 * arguments.minutes * arguments.from_share
    losses: list[torch.Tensor] = []
    path = arguments.out / "checkpoint.pt"
    while (share := (time.monotonic() - start) / (60 * arguments.minutes)) < 1:
        batch = batches.take(with_prompt=share < PROMPT_UNTIL).to(arguments.device)
        loss, answer_loss = losses_of(model, batch)
        model.zero_grad()
        loss.backward()
        norm = master.step(rate_at(share), quantize=share >= arguments.quantize_from)
        step, tokens = step + 1, tokens + batch.num_tokens
        examples += batch.num_examples
        losses.append(answer_loss)
        if step % arguments.log_every_steps:
            continue
        loss_mean = torch.stack(losses).mean().item()  # blocks until a GPU has computed the losses
        losses.clear()
        seconds = time.monotonic() - begin
        counts = {"step": step, "tokens": tokens, "examples": examples}
        progress = {
            "minutes": round(seconds / 60, 2),
            "loss": round(loss_mean, 4),
            "gradient_norm": round(norm.item(), 3),
            "rate": round(rate_at(share), 3),
            "tokens_per_second": round((tokens - tokens_before) / seconds),
        }
        print(json.dumps(counts | progress), flush=True)
        if time.monotonic() - last_save > 150:
            save(path, master, arguments.which, counts)
            last_save = time.monotonic()
    counts = {"step": step, "tokens": tokens, "examples": examples}
    save(path, master, arguments.which, counts)


def main() -> None:
    """Parses the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--which", choices=sorted([*CONFIGS, HYBRID]), required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--tokens-per-step", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=CORPUS_SEED)
    parser.add_argument("--resume", type=Path, help="training checkpoint to continue from")
    parser.add_argument("--start", type=Path, help="exported MLX folder to start from")
    parser.add_argument(
        "--is-continued",
        action="store_true",
        help="reduce the share of question types learned before tools and JSON",
    )
    parser.add_argument(
        "--quantize-from",
        type=float,
        default=QUANTIZE_FROM,
        help="share of the time after which weights are quantized",
    )
    parser.add_argument(
        "--from-share", type=float, default=0.0, help="share of the schedule to skip"
    )
    parser.add_argument("--device", default="cpu", help="PyTorch device of the hybrid model")
    parser.add_argument(
        "--workers", type=int, default=1, help="processes that make the hybrid's batches"
    )
    parser.add_argument("--log-every-steps", type=int, default=10)
    parser.add_argument("--eager", action="store_true", help="disable torch.compile")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
