"""`serve --model`: argument parsing, supported flags and memory budget."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ...engine.engine_args import EngineArgs
from ...engine.inputs.options import parse_options
from ...errors import UserError
from ...models.memory import total_memory
from ...models.model_size import model_size
from ...models.output_heads import TASKS
from ...server.settings import ModelSpec
from ..memory_table import estimate_memory
from ..parsing.arguments import flag_name, is_set

PIN = "pin"
KV_CACHE_BYTES = 2**29  # default KV cache size per model, if several are served
NAME_AND_OPTIONS = re.compile(r"(.*?)=([\w-]+(?:=[^,=]*)?(?:,[\w-]+(?:=[^,=]*)?)*)")

# Flags that require a single model, by attribute name.
SINGLE_MODEL_FLAGS = (
    *("draft_model", "tensor_parallel_size", "served_model_name", "task", "chat_template"),
    *("max_model_len", "adapter_path", "lora_modules", "record"),
)


@dataclass(frozen=True)
class ModelArgument:
    """Value of a `--model` flag: a name, the model's own options, whether it stays loaded."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)  # of `EngineArgs`
    is_pinned: bool = False


def parse_model_argument(text: str) -> ModelArgument:
    """Parses `NAME[=OPTIONS]`: a task, "pin" and options of `EngineArgs`, as `block-size=16`.

    An existing path is not split, because it may contain "=".
    """
    match = NAME_AND_OPTIONS.fullmatch(text)
    if match is None or Path(text).expanduser().exists():
        return ModelArgument(text)
    name, given = match.groups()
    pairs = [part.partition("=") for part in given.split(",")]
    words = [word for word, separator, _ in pairs if not separator]
    tasks = [word for word in words if word in TASKS]
    if {*words} - {*TASKS, PIN} or len(tasks) > 1 or not name:
        raise UserError(
            f"--model {text}: invalid options '{given}'; use at most one task "
            f"({', '.join(TASKS)}), {PIN} and engine options, e.g. PATH=embed,pin or "
            "PATH=kv-cache-dtype=int8."
        )
    values = {key.replace("-", "_"): value for key, separator, value in pairs if separator}
    for key in ("lora_modules", "tensor_parallel_size"):
        if key in values:
            raise UserError(f"--model {text}: use the flag {flag_name(key)} instead of {key}.")
    [options] = parse_options(values, EngineArgs)
    return ModelArgument(name, options | ({"task": tasks[0]} if tasks else {}), PIN in words)


def check_flags(args: argparse.Namespace, models: Sequence[ModelArgument]) -> None:
    if len(models) > 1:
        for name in SINGLE_MODEL_FLAGS:
            if is_set(args, name):
                fix = "pass the task as --model PATH=TASK" if name == "task" else "omit it"
                raise UserError(
                    f"{flag_name(name)} supports a single --model, got {len(models)}; {fix}."
                )
    task = models[0].options.get("task")
    if len(models) == 1 and None not in (task, args.task) and args.task not in ("auto", task):
        raise UserError(
            f"--task {args.task} conflicts with --model {models[0].name}={task}; omit one of them."
        )
    if args.idle_unload is not None:
        for name in ("tensor_parallel_size", "record"):
            if is_set(args, name):
                raise UserError(
                    f"{flag_name(name)} cannot be combined with --idle-unload; omit one of them."
                )


def default_kv_cache_bytes(
    args: EngineArgs, num_models: int, max_memory: int | None
) -> float | None:
    """KV memory of a model for which none is given; None if `LLM` chooses it at load time."""
    if args.kv_cache_bytes is not None:
        return args.kv_cache_bytes
    if num_models > 1:
        return KV_CACHE_BYTES
    if max_memory is None:
        return None
    estimate = estimate_memory(args)[args.kv_cache_dtype]
    return max(1, min(estimate.memory.num_bytes, max_memory - estimate.weight_bytes))


def memory_requirement(args: EngineArgs) -> int:
    """Bytes of the weights and the KV cache, without a KV cache that `LLM` sizes at load time."""
    paths = [path for path in (args.model, args.draft_model) if path is not None]
    sizes = [model_size(Path(cast("str", path)), 1, args.load_format) for path in paths]
    return sum(size.weight_bytes for size in sizes) + int(args.kv_cache_bytes or 0)


def memory_budget(max_memory: int | None, specs: Sequence[ModelSpec]) -> int | None:
    """Memory budget of all models; None for a single model without a budget.

    For several models, it defaults to the machine's memory.

    Raises:
        UserError: a model does not fit alongside the pinned models, or the budget exceeds the
            machine's memory.
    """
    total = total_memory()
    if max_memory is None:
        if len(specs) == 1:
            return None  # no budget: `LLM` sizes the KV cache from the available memory
        given, max_memory = "the machine's memory of", total
    elif max_memory > total:
        raise UserError(
            f"--max-memory must be at most the machine's memory of {total:,} bytes, got "
            f"{max_memory:,}."
        )
    else:
        given = "--max-memory"
    needs = [spec.memory_bytes() for spec in specs]
    pinned = sum(need * spec.is_pinned for need, spec in zip(needs, specs, strict=True))
    for spec, need in zip(specs, needs, strict=True):
        others = pinned - need * spec.is_pinned
        if others + need > max_memory:
            pinned_note = f", in addition to {others:,} for other pinned models" if others else ""
            kv_cache = int(spec.args.kv_cache_bytes or 0)
            raise UserError(
                f"{given} {max_memory:,} bytes is too small: the model '{spec.names[0]}' needs "
                f"{need:,} bytes ({need - kv_cache:,} for weights, {kv_cache:,} for the KV cache)"
                f"{pinned_note}; raise --max-memory or lower --kv-cache-bytes."
            )
    return max_memory
