"""HTTP server with OpenAI- and Anthropic-compatible APIs."""

import argparse
import logging
import socket
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from .. import demo, kernels
from ..engine.factory import adapter_folders, resolve_task
from ..engine.llm import DEFAULT_MAX_NUM_SEQS, LLM
from ..engine.tool_calls.registry import AUTO, NAMES
from ..errors import UserError
from ..models import default_model
from ..models.gguf.model_files import has_tokenizer
from ..models.heads.pooling import TASKS, Task
from ..models.hub import find_config, find_model
from ..models.tokenizer.chat_template import read_template_file
from .backends.checkpoint import set_device
from .backends.engine import engine_options
from .backends.served_models import (
    ModelArgument,
    check_flags,
    choose_kv_cache_bytes,
    memory_budget,
    memory_needs,
    parse_model_argument,
    weight_bytes,
)
from .estimates.memory_table import estimate_memory, print_memory_table
from .parsing.arguments import (
    API_KEY_VARIABLE,
    add_engine_arguments,
    add_flag,
    api_key,
    byte_count,
    in_range,
)
from .parsing.command import CommandParser, SafeFormatter, console, run_command

DEFAULT_STEP_TIME_TARGET = 0.1  # seconds
ENGINE_OPTIONS = (  # flags passed to `LLM` unchanged, besides those of `engine_options`
    *("draft_model", "load_format", "max_model_len", "max_num_batched_tokens", "max_num_seqs"),
    *("scheduling_policy", "tensor_parallel_size", "tool_call_parser"),
)
LIBRARIES = ("fastapi", "uvicorn", "httptools", "pydantic", "prometheus_client", "jsonschema")
SECONDS = in_range(1e-3, convert=float)
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


def main(argv: Sequence[str] | None = None, prog: str = "serve") -> int:
    """Runs the command. Exit status: 0, 1 (engine failure) or 2 (user error)."""
    return run_command(prog, lambda: _serve(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, __doc__, "tiny_llm.cli.serve", skips_unwritten=True)
    _add_model_arguments(parser)
    _add_access_arguments(parser)
    _add_limits(parser)
    return parser


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    flag = partial(add_flag, parser)
    flag(
        "--model NAME[=OPTIONS]",
        "name, Hub id, folder or GGUF file, as for `main`; may be repeated: models are then loaded "
        "on first use, and requests that name no model use the first. OPTIONS: a task (see "
        "--task), pin (keep the model loaded), or both, e.g. PATH=embed,pin",
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
        "--max-memory N",
        "maximum bytes of weights and KV caches of all loaded models; the least recently used "
        "model is unloaded to stay within it; by default, the machine's memory",
        byte_count,
    )
    flag(
        "--idle-unload S",
        "unload a model after S seconds without requests; by default, never",
        SECONDS,
    )
    add_engine_arguments(parser)
    flag(
        "--kv-cache-bytes N",
        "bytes of memory for a model's KV cache and recurrent states, allocated on demand; "
        "limits the total context of all running requests; by default, 3/4 of the memory left "
        "after loading the weights, or 512 MiB per model if several are served",
        byte_count,
    )
    flag("--max-num-seqs N", "maximum number of running sequences", int, DEFAULT_MAX_NUM_SEQS)
    flag(
        "--max-num-batched-tokens N",
        "maximum tokens per step across all requests; longer prompts are prefilled in chunks",
        int,
        256,
    )
    flag(
        "--max-model-len N",
        "maximum prompt plus completion tokens; by default, the model's context length",
        in_range(2),
    )
    flag(
        "--task",
        "auto: embed for embedding models, otherwise generate; use score for reranking models",
        ["auto", *TASKS],
        "auto",
    )
    flag(
        "--scheduling-policy",
        "fair: short prompts may overtake long ones, within a bound; fcfs: first come, first "
        "served",
        ["fair", "fcfs"],
        "fair",
    )
    flag(
        "--step-time-target S",
        "target seconds per step while requests are decoding; limits the prompt tokens in the "
        "same step (fair only; default: 0.1)",
        SECONDS,
    )
    flag(
        "--served-model-name NAME",
        "model name in the API; further names are aliases, and responses use the first; by "
        "default, the last component of --model",
        action="extend",
        nargs="+",
    )
    flag(
        "--lora-modules NAME=DIR",
        "LoRA adapters (folders written by mlx_lm.lora); a request selects one by passing its "
        "name as the model",
        lora_module,
        action="extend",
        nargs="+",
    )
    flag("--chat-template FILE", "Jinja chat template; by default, the model's", Path)
    flag(
        "--tool-call-parser",
        "tool-call format; by default, detected from the model's chat template",
        [AUTO, *NAMES],
        AUTO,
    )
    flag(
        "--generation-config",
        "default sampling parameters: auto reads the model's generation_config.json; vllm "
        "uses temperature 1 without top-p, top-k or min-p",
        ["auto", "vllm"],
        "auto",
    )


def _add_access_arguments(parser: argparse.ArgumentParser) -> None:
    flag = partial(add_flag, parser)
    flag("--host HOST", "address to listen on", default="127.0.0.1")
    flag("--port N", "port to listen on; 0 selects a free port", in_range(0, 65535), 8000)
    flag("--api-key KEY", f"API key required from clients; or set {API_KEY_VARIABLE}")
    flag("--allow-anonymous", "allow a non-local --host without an API key", action="store_true")
    flag(
        "--allowed-host NAME",
        "Host header to accept when no API key is set, e.g. tiny.example; may be repeated; "
        "'*' accepts any",
        default=[],
        action="append",
    )
    flag("--cors-origin URL", "allowed CORS origin; may be repeated", default=[], action="append")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    flag = partial(add_flag, parser)
    flag(
        "--response-store N",
        "keep the last N responses in memory, for previous_response_id and item_reference; 0 "
        "disables the store",
        in_range(0),
        0,
    )
    flag(
        "--strict-fields",
        "reject requests with fields that would be ignored; by default, the log and the response "
        "header x-tiny-llm-ignored-fields name these",
        action="store_true",
    )
    flag(
        "--log-requests",
        "log each request's method, path, status, id, token counts and timing; by default, "
        "only rejected and failed requests",
        action="store_true",
    )
    flag(
        "--log-contents",
        "also log the bodies of requests and responses; implies --log-requests",
        action="store_true",
    )
    flag("--record FILE", "record engine events, for replay in the web UI", Path)
    flag(
        "--prefix-warmup",
        "prefill a conversation's next turn while the engine is idle",
        default=True,
        action=argparse.BooleanOptionalAction,
    )
    flag(
        "--max-queue N",
        "maximum queued requests beyond --max-num-seqs; further requests get status 429",
        in_range(0),
        256,
    )
    flag(
        "--max-body-bytes N",
        "maximum bytes of a request body; larger bodies get status 413; by default, 32 bytes "
        "per token of context, but at least 4 MiB and at most 16 MiB",
        in_range(1),
    )
    flag(
        "--request-timeout S",
        "maximum seconds per request, including queueing; by default, unlimited",
        SECONDS,
    )
    flag(
        "--drain-timeout S",
        "maximum seconds to wait for running requests after SIGTERM",
        in_range(0, convert=float),
        30.0,
    )
    flag(
        "--watchdog S",
        "maximum seconds per engine step; the process exits if a step takes longer",
        SECONDS,
        120.0,
    )


def _serve(args: argparse.Namespace) -> int:
    _check_host(args)
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"serve requires {', '.join(missing)}; run `pip install 'tiny-llm[serve]'`."
        )
    kernels.extension()  # raises before the model is loaded if the extension is not built
    chat_template = None if args.chat_template is None else read_template_file(args.chat_template)
    models, reason = [parse_model_argument(text) for text in args.model or ()], None
    if not models:
        name, reason = default_model()
        models = [ModelArgument(name)]
    check_flags(args, models)
    for model in models:
        console.print(f"model: {model.name}" + (f" ({reason})" if reason else ""), soft_wrap=True)
    find = find_config if args.load_format == "dummy" else find_model
    folders = [find(model.name, console) for model in models]
    draft = None if args.draft_model is None else find(args.draft_model, console)
    api_names = [Path(model.name).name or model.name for model in models]
    names = [tuple(args.served_model_name or [name]) for name in api_names]
    choose_kv_cache_bytes(args, folders, draft)
    needs = memory_needs(args, models, names, folders, draft)
    max_memory = memory_budget(args.max_memory, needs)
    listening = _listen(args.host, args.port)

    # Imported here, because it requires optional dependencies.
    from ..server.process import ServerProcess
    from ..server.settings import ModelSpec, Settings

    handler = logging.StreamHandler()
    handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("tiny_llm").setLevel(logging.INFO)
    settings = Settings()
    flags = {field.name for field in fields(settings)} & vars(args).keys()
    settings = replace(settings, **{name: getattr(args, name) for name in flags})
    settings = replace(
        settings,
        model_names=names[0],
        adapter_names=tuple(_adapter_names(args, names[0])),
        max_memory=max_memory,
        api_key=api_key(args.api_key),
        allowed_hosts=(args.host, *args.allowed_host),
        cors_origins=tuple(args.cors_origin),
        chat_template=chat_template,
    )
    is_never_unloaded = len(models) == 1 and args.idle_unload is None
    specs = []
    for model, folder, aliases in zip(models, folders, names, strict=True):
        task = resolve_task(args.task if model.task == "auto" else model.task, str(folder))
        # Ranks may run on other machines, where the folder has another path: pass the name.
        path = str(folder) if args.tensor_parallel_size == 1 else model.name
        specs.append(
            ModelSpec(
                aliases,
                # A model with dummy weights may lack a tokenizer; use the demo model's.
                folder if has_tokenizer(folder) else demo.TARGET_PATH,
                partial(_load, args, path, task, chat_template, folder, draft),
                task,
                partial(_memory_bytes, args, folder, draft),
                is_never_unloaded or model.is_pinned,
            )
        )
    return ServerProcess(settings, specs, listening).run()


def _load(
    args: argparse.Namespace,
    model: str,
    task: Task,
    chat_template: str | None,
    folder: Path,
    draft_folder: Path | None,
) -> LLM:
    set_device(args.device)
    estimates = estimate_memory(args, folder, draft_folder)
    print_memory_table(console, model, estimates)
    return LLM(
        model,
        kv_cache_bytes=estimates[args.kv_cache_dtype or "auto"].kv_cache_bytes,
        chat_template=chat_template,
        task=task,
        step_time_target=_step_time_target(args),
        lora_modules=_lora_modules(args),
        seed=None,  # random, so that unseeded requests differ between runs
        **{name: getattr(args, name) for name in ENGINE_OPTIONS},
        **engine_options(args),
    )


def _memory_bytes(args: argparse.Namespace, folder: Path, draft: Path | None) -> int:
    return weight_bytes(args, folder, draft) + (args.kv_cache_bytes or 0)


def lora_module(text: str) -> tuple[str, str]:
    """Argument type NAME=DIR: an adapter's name and folder."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"must be NAME=DIR, got {text}")
    return name, path


def _lora_modules(args: argparse.Namespace) -> dict[str, str] | None:
    return None if args.lora_modules is None else dict(args.lora_modules)


def _adapter_names(args: argparse.Namespace, model_names: Sequence[str]) -> list[str]:
    """Names of the LoRA adapters; rejects duplicates and conflicting flags."""
    adapter_folders(args.adapter_path, _lora_modules(args))
    names = [name for name, _ in args.lora_modules or ()]
    for index, name in enumerate(names):
        if name in (*model_names, *names[:index]):
            raise UserError(
                f"--lora-modules: '{name}' is already the name of the model or another adapter; "
                "choose a unique name."
            )
    return names


def _step_time_target(args: argparse.Namespace) -> float | None:
    if args.step_time_target is None:
        return DEFAULT_STEP_TIME_TARGET if args.scheduling_policy == "fair" else None
    if args.scheduling_policy == "fcfs":
        raise UserError("--step-time-target has no effect with --scheduling-policy fcfs; omit it.")
    target: float = args.step_time_target
    return target


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


if __name__ == "__main__":
    sys.exit(main())
