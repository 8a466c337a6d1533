"""`serve --model`: argument parsing, supported flags and memory budget."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError
from ...models.heads.pooling import TASKS
from ...models.memory import total_memory
from ...models.model_size import model_size
from ..estimates.memory_table import estimate_memory
from ..parsing.arguments import flag_name

PIN = "pin"
KV_CACHE_BYTES = 2**29  # default KV cache size per model, if several are served

# Flags that require a single model: namespace attribute names, mapped to defaults.
SINGLE_MODEL_FLAGS = {
    "draft_model": None,
    "tensor_parallel_size": 1,
    "served_model_name": None,
    "task": "auto",
    "chat_template": None,
    "max_model_len": None,
    "adapter_path": None,
    "lora_modules": None,
    "record": None,
}


@dataclass(frozen=True)
class ModelArgument:
    name: str
    task: str = "auto"
    is_pinned: bool = False  # whether the model is loaded at startup and never unloaded


@dataclass(frozen=True)
class MemoryRequirement:
    """A model's memory requirement in bytes."""

    name: str
    weights: int
    kv_cache: int
    is_pinned: bool

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache


def parse_model_argument(text: str) -> ModelArgument:
    """Parses `NAME[=OPTIONS]`; the options are at most one task, and "pin".

    An existing path is not split, because it may contain "=".
    """
    name, separator, given = text.rpartition("=")
    if not separator or Path(text).expanduser().exists():
        return ModelArgument(text)
    options = given.split(",")
    tasks = [option for option in options if option in TASKS]
    if {*options} - {*TASKS, PIN} or len(tasks) > 1 or not name:
        raise UserError(
            f"--model {text}: invalid options '{given}'; use at most one task ({', '.join(TASKS)}) "
            f"and {PIN}, e.g. PATH=embed, PATH=pin or PATH=embed,pin."
        )
    return ModelArgument(name, tasks[0] if tasks else "auto", PIN in options)


def check_flags(args: argparse.Namespace, models: Sequence[ModelArgument]) -> None:
    if len(models) > 1:
        for name, default in SINGLE_MODEL_FLAGS.items():
            if getattr(args, name) != default:
                fix = "pass the task as --model PATH=TASK" if name == "task" else "omit it"
                raise UserError(
                    f"{flag_name(name)} supports a single --model, got {len(models)}; {fix}."
                )
    elif models[0].task != "auto" and args.task not in ("auto", models[0].task):
        raise UserError(
            f"--task {args.task} conflicts with --model {models[0].name}={models[0].task}; omit "
            "one of them."
        )
    if args.idle_unload is not None:
        for name in ("tensor_parallel_size", "record"):
            if getattr(args, name) != SINGLE_MODEL_FLAGS[name]:
                raise UserError(
                    f"{flag_name(name)} cannot be combined with --idle-unload; omit one of them."
                )


def choose_kv_cache_bytes(
    args: argparse.Namespace, folders: Sequence[Path], draft: Path | None
) -> None:
    """Sets `kv_cache_bytes`, if unset, for several models or a memory budget.

    With a single model and no budget, `LLM` sizes the KV cache from the available memory.
    """
    if args.kv_cache_bytes is not None:
        return
    if len(folders) > 1:
        args.kv_cache_bytes = KV_CACHE_BYTES
    elif args.max_memory is not None:
        estimate = estimate_memory(args, folders[0], draft)[args.kv_cache_dtype or "auto"]
        args.kv_cache_bytes = max(
            1, min(estimate.kv_cache_bytes, args.max_memory - estimate.weight_bytes)
        )


def memory_needs(
    args: argparse.Namespace,
    models: Sequence[ModelArgument],
    names: Sequence[Sequence[str]],
    folders: Sequence[Path],
    draft: Path | None,
) -> list[MemoryRequirement]:
    """Memory requirement of each model, including the draft model's.

    Raises:
        UserError: two models have the same API name, or a folder does not contain a model.
    """
    first_names = [name for name, *_ in names]
    for name in first_names:
        if first_names.count(name) > 1:
            raise UserError(
                f"two models have the API name '{name}'; use folders with different names."
            )
    return [
        MemoryRequirement(
            name,
            weight_bytes(args, folder, draft),
            args.kv_cache_bytes or 0,  # 0 if `LLM` chooses the size at load time
            model.is_pinned,
        )
        for name, model, folder in zip(first_names, models, folders, strict=True)
    ]


def weight_bytes(args: argparse.Namespace, folder: Path, draft: Path | None) -> int:
    folders = [folder] if draft is None else [folder, draft]
    return sum(model_size(each, 1, args.load_format).weight_bytes for each in folders)


def memory_budget(max_memory: int | None, needs: Sequence[MemoryRequirement]) -> int | None:
    """Memory budget of all models; None for a single model without a budget.

    For several models, it defaults to the machine's memory.

    Raises:
        UserError: a model does not fit alongside the pinned models, or the budget exceeds the
            machine's memory.
    """
    total = total_memory()
    if max_memory is None:
        if len(needs) == 1:
            return None  # no budget: `LLM` sizes the KV cache from the available memory
        given, max_memory = "the machine's memory of", total
    elif max_memory > total:
        raise UserError(
            f"--max-memory must be at most the machine's memory of {total:,} bytes, got "
            f"{max_memory:,}."
        )
    else:
        given = "--max-memory"
    pinned = sum(need.total for need in needs if need.is_pinned)
    for need in needs:
        others = pinned - need.total * need.is_pinned
        if others + need.total > max_memory:
            pinned_note = f", in addition to {others:,} for other pinned models" if others else ""
            raise UserError(
                f"{given} {max_memory:,} bytes is too small: the model '{need.name}' needs "
                f"{need.total:,} bytes ({need.weights:,} for weights, {need.kv_cache:,} for the KV "
                f"cache){pinned_note}; raise --max-memory or lower --kv-cache-bytes."
            )
    return max_memory
