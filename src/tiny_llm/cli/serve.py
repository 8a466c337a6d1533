"""HTTP server with OpenAI- and Anthropic-compatible APIs."""

import argparse
import logging
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from .. import kernels
from ..engine.engine_args import EngineArgs
from ..engine.factory import resolve_task
from ..engine.inputs.options import parse_options
from ..engine.llm import LLM
from ..errors import UserError
from ..models import default_model
from ..models.hub import find_files
from ..models.memory import model_size, total_memory
from ..models.output_heads import TASKS
from ..models.tokenizer.chat_template import read_template_file
from ..server.settings import ModelSpec, Settings
from .backends.local import set_device
from .memory_table import estimate_memory, print_memory_table
from .parsing.arguments import (
    add_engine_arguments,
    add_flag,
    add_options,
    api_key,
    flag_name,
    given_options,
    in_range,
    is_set,
)
from .parsing.command import CommandParser, SafeFormatter, console, run_command

DEFAULT_STEP_TIME_TARGET = 0.1  # seconds
LIBRARIES = ("fastapi", "uvicorn", "httptools", "pydantic", "prometheus_client", "jsonschema")
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")

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


def main(argv: Sequence[str] | None = None, prog: str = "serve") -> int:
    """Runs the command. Exit status: 0, 1 (engine failure) or 2 (user error)."""
    return run_command(prog, lambda: _serve(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, __doc__, "tiny_llm.cli.serve", skips_unwritten=True)
    flag = partial(add_flag, parser)
    flag(
        "--model NAME[=OPTIONS]",
        "name, Hub id, folder or GGUF file, as for `main`; may be repeated: models are then loaded "
        "on first use, and requests that name no model use the first. OPTIONS: a task (see "
        "--task), pin (keep the model loaded) and engine options of this model, e.g. "
        "PATH=embed,pin or PATH=kv-cache-dtype=int8",
        action="append",
    )
    flag(
        "--solution",
        "ref (or tiny_llm_ref): this package; mine: the learner's tree, except files with an "
        "unwritten task; tiny_llm: mine if it exists, else ref",
        ["tiny_llm", "ref", "tiny_llm_ref", "mine"],
        "ref",
    )
    flag(
        "--served-model-name NAME",
        "model name in the API; further names are aliases, and responses use the first; by "
        "default, the last component of --model",
        action="extend",
        nargs="+",
    )
    add_engine_arguments(parser, "serve")
    flag("--host HOST", "address to listen on", default="127.0.0.1")
    flag("--port N", "port to listen on; 0 selects a free port", in_range(0, 65535), 8000)
    flag("--allow-anonymous", "allow a non-local --host without an API key", action="store_true")
    add_options(parser, Settings, "serve")
    return parser


def _serve(args: argparse.Namespace) -> int:
    _check_host(args)
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"serve requires {', '.join(missing)}; run `pip install 'tiny-llm[serve]'`."
        )
    kernels.extension()  # raises before the model is loaded if the extension is not built
    models, reason = [parse_model_argument(text) for text in args.model or ()], None
    if not models:
        name, reason = default_model()
        models = [ModelArgument(name)]
    check_flags(args, models)
    for model in models:
        console.print(f"model: {model.name}" + (f" ({reason})" if reason else ""), soft_wrap=True)
    specs: list[ModelSpec] = []
    is_never_unloaded = len(models) == 1 and args.idle_unload is None
    for model in models:
        names = tuple(args.served_model_name or [Path(model.name).name or model.name])
        if any(names[0] in spec.names for spec in specs):
            raise UserError(
                f"two models have the API name '{names[0]}'; use folders with different names."
            )
        engine_args = _engine_args(args, model)
        memory = default_kv_cache_bytes(engine_args, len(models), args.max_memory)
        engine_args = replace(engine_args, kv_cache_bytes=memory)
        load = partial(_load, engine_args, model.name, args.device)
        memory_bytes = partial(memory_requirement, engine_args)
        is_pinned = is_never_unloaded or model.is_pinned
        specs.append(ModelSpec(names, engine_args, load, memory_bytes, is_pinned))
    settings = Settings(
        **{
            **given_options(args, Settings),
            "adapter_names": tuple(_adapter_names(args, specs[0].names)),
            "max_memory": memory_budget(args.max_memory, specs),
            "api_key": api_key(args.api_key),
            "allowed_hosts": (args.host, *(args.allowed_hosts or ())),
            "cors_origins": tuple(args.cors_origins or ()),
        }
    )
    listening = _listen(args.host, args.port)

    # Imported here, because it requires optional dependencies.
    from ..server.process import ServerProcess

    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("tiny_llm").setLevel(logging.INFO)
    return ServerProcess(settings, specs, listening).run()


def _engine_args(args: argparse.Namespace, model: ModelArgument) -> EngineArgs:
    """A model's options, with the paths of the model and its draft model."""
    options = {"seed": None, **given_options(args, EngineArgs)}
    options |= {"lora_modules": dict(args.lora_modules)} if args.lora_modules else {}
    options |= model.options
    if "chat_template" in options:
        options["chat_template"] = read_template_file(Path(options["chat_template"]))
    if options["scheduling_policy"] == "fair":
        options.setdefault("step_time_target", DEFAULT_STEP_TIME_TARGET)
    for name, value in (("model", model.name), ("draft_model", options.get("draft_model"))):
        if value is not None:
            options[name] = str(find_files(value, console, options.get("load_format")))
    options["task"] = resolve_task(options.get("task", "auto"), options["model"])
    return EngineArgs(**options)


def _load(args: EngineArgs, name: str, device: str | None) -> LLM:
    set_device(device)
    estimates = estimate_memory(args)
    # Ranks may run on other machines, where the folder has another path: pass the name.
    model = str(args.model) if args.tensor_parallel_size == 1 else name
    print_memory_table(console, model, estimates)
    memory = estimates[args.kv_cache_dtype].memory.num_bytes
    return LLM(**vars(replace(args, model=model, kv_cache_bytes=memory)))


def _adapter_names(args: argparse.Namespace, model_names: Sequence[str]) -> list[str]:
    """Names of the LoRA adapters; rejects duplicates."""
    names = [name for name, _ in args.lora_modules or ()]
    for index, name in enumerate(names):
        if name in (*model_names, *names[:index]):
            raise UserError(
                f"--lora-modules: '{name}' is already the name of the model or another adapter; "
                "choose a unique name."
            )
    return names


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UserError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another --port."
        ) from error
    return listening


def _check_host(args: argparse.Namespace) -> None:
    has_key = api_key(args.api_key) is not None
    if args.host not in LOCAL_HOSTS and not has_key and not args.allow_anonymous:
        raise UserError(
            f"--host {args.host} exposes the server to other machines without an API key; set "
            "--api-key, or --allow-anonymous for a public server."
        )


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


if __name__ == "__main__":
    sys.exit(main())
