"""HTTP server with OpenAI- and Anthropic-compatible APIs."""

import argparse
import logging
import socket
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from .. import demo, kernels
from ..engine.factory import adapter_folders, resolve_task
from ..engine.llm import DEFAULT_MAX_NUM_SEQS, LLM
from ..engine.tool_calls.registry import AUTO, NAMES
from ..errors import UserError
from ..models import default_model
from ..models.checkpoint.layout import has_tokenizer
from ..models.heads.pooling import TASKS, Task
from ..models.hub import find_config, find_model
from ..models.tokenizer.chat_template_files import read_template_file
from .backends.checkpoint import set_device
from .memory_table import fits_of_flags, print_fits
from .parsing.arguments import (
    API_KEY_VARIABLE,
    DEFAULT_BLOCK_SIZE,
    add_engine_arguments,
    api_key,
    byte_count,
    in_range,
)
from .parsing.command import CommandParser, console, run_command
from .served_models import (
    ModelArgument,
    api_name,
    check_flags,
    choose_kv_cache_bytes,
    memory_budget,
    memory_needs,
    parse_model_argument,
)

DEFAULT_STEP_TIME_TARGET = 0.1  # seconds
LIBRARIES = ("fastapi", "uvicorn", "httptools", "pydantic", "prometheus_client", "jsonschema")
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


def main(argv: Sequence[str] | None = None, prog: str = "serve") -> int:
    """Runs the command. Exit status: 0, 1 if the engine failed, 2 for a user error."""
    return run_command(prog, lambda: _serve(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    """Builds the command's argument parser."""
    parser = CommandParser(prog, __doc__, "tiny_llm.cli.serve", skips_unwritten=True)
    _add_model_arguments(parser)
    _add_access_arguments(parser)
    _add_limits(parser)
    return parser


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        action="append",
        metavar="NAME[=OPTIONS]",
        help="name, Hub id or folder, as for `main`; may be repeated: models are then loaded on "
        "first use, and requests that name no model use the first. OPTIONS: a task (see --task), "
        "pin (keep the model loaded), or both, e.g. PATH=embed,pin",
    )
    parser.add_argument(
        "--solution",
        choices=["tiny_llm", "ref", "mine"],
        default="tiny_llm",
        help="tiny_llm (or ref): this package; mine: the learner's tree, except files with an "
        "unwritten task",
    )
    parser.add_argument(
        "--max-memory",
        type=byte_count,
        metavar="N",
        help="maximum bytes of weights and KV caches of all loaded models; the least recently used "
        "model is unloaded to stay within it; by default, the machine's memory",
    )
    parser.add_argument(
        "--idle-unload",
        type=in_range(1e-3, convert=float),
        metavar="S",
        help="unload a model after S seconds without requests; by default, never",
    )
    add_engine_arguments(parser)
    parser.add_argument(
        "--kv-cache-bytes",
        type=byte_count,
        metavar="N",
        help="bytes of memory for a model's KV cache and recurrent states, allocated on demand; "
        "limits the total context of all running requests; by default, 3/4 of the memory left "
        "after loading the weights, or 512 MiB per model if several are served",
    )
    parser.add_argument(
        "--max-num-seqs",
        type=int,
        default=DEFAULT_MAX_NUM_SEQS,
        metavar="N",
        help="maximum number of running sequences",
    )
    parser.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=256,
        metavar="N",
        help="maximum tokens per step across all requests; longer prompts are prefilled in chunks",
    )
    parser.add_argument(
        "--max-model-len",
        type=in_range(2),
        metavar="N",
        help="maximum length of prompt plus completion; by default, the model's context length",
    )
    parser.add_argument(
        "--task",
        choices=["auto", *TASKS],
        default="auto",
        help="auto: embed for embedding models, otherwise generate; use score for reranking models",
    )
    parser.add_argument(
        "--scheduling-policy",
        choices=["fair", "fcfs"],
        default="fair",
        help="fair: short prompts may overtake long ones, within a bound; fcfs: first come, first "
        "served",
    )
    parser.add_argument(
        "--step-time-target",
        type=in_range(1e-3, convert=float),
        metavar="S",
        help="target seconds per step while requests are decoding; limits the prompt tokens in the "
        "same step (fair only; default: 0.1)",
    )
    parser.add_argument(
        "--served-model-name",
        action="extend",
        nargs="+",
        metavar="NAME",
        help="model name in the API; further names are aliases, and responses use the first; by "
        "default, the last component of --model",
    )
    parser.add_argument(
        "--lora-modules",
        action="extend",
        nargs="+",
        type=lora_module,
        metavar="NAME=DIR",
        help="LoRA adapters (folders written by mlx_lm.lora); a request selects one by passing its "
        "name as the model",
    )
    parser.add_argument(
        "--chat-template",
        type=Path,
        metavar="FILE",
        help="Jinja chat template; by default, the model's",
    )
    parser.add_argument(
        "--tool-call-parser",
        choices=[AUTO, *NAMES],
        default=AUTO,
        help="tool-call format; by default, detected from the model's chat template",
    )
    parser.add_argument(
        "--generation-config",
        choices=["auto", "vllm"],
        default="auto",
        help="default sampling parameters: auto reads the model's generation_config.json; vllm "
        "uses temperature 1 and no filters",
    )


def _add_access_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to listen on")
    parser.add_argument(
        "--port",
        type=in_range(0, 65535),
        default=8000,
        metavar="N",
        help="port to listen on; 0 selects a free port",
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"API key required from clients; or set {API_KEY_VARIABLE}",
    )
    parser.add_argument(
        "--allow-anonymous",
        action="store_true",
        help="allow a non-local --host without an API key",
    )
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="Host header to accept when no API key is set, e.g. tiny.example; may be repeated; "
        "'*' accepts any",
    )
    parser.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="URL",
        help="allowed CORS origin; may be repeated",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--response-store",
        type=in_range(0),
        default=0,
        metavar="N",
        help="keep the last N responses in memory, for previous_response_id and item_reference; 0 "
        "disables the store",
    )
    parser.add_argument(
        "--log-requests",
        action="store_true",
        help="log each request's method, path, status, id, token counts and timing; by default, "
        "only rejected and failed requests",
    )
    parser.add_argument(
        "--log-contents",
        action="store_true",
        help="also log the bodies of requests and responses; implies --log-requests",
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="record engine events, for replay in the web UI"
    )
    parser.add_argument(
        "--prefix-warmup",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="prefill a conversation's next turn while the engine is idle",
    )
    parser.add_argument(
        "--max-queue",
        type=in_range(0),
        default=256,
        metavar="N",
        help="maximum queued requests beyond --max-num-seqs; further requests get status 429",
    )
    parser.add_argument(
        "--max-body-bytes",
        type=in_range(1),
        metavar="N",
        help="maximum size of a request body; larger bodies get status 413; by default, 32 bytes "
        "per token of context, at least 4 and at most 16 MiB",
    )
    parser.add_argument(
        "--request-timeout",
        type=in_range(1e-3, convert=float),
        metavar="S",
        help="maximum seconds per request, including queueing; by default, unlimited",
    )
    parser.add_argument(
        "--drain-timeout",
        type=in_range(0, convert=float),
        default=30.0,
        metavar="S",
        help="maximum seconds to wait for running requests after SIGTERM",
    )
    parser.add_argument(
        "--watchdog",
        type=in_range(1e-3, convert=float),
        default=120.0,
        metavar="S",
        help="maximum seconds per engine step; the process exits if a step takes longer",
    )


def _serve(args: argparse.Namespace) -> int:
    _check_host(args)
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"serve requires {', '.join(missing)}; run `pip install 'tiny-llm[serve]'`."
        )
    kernels.extension()  # fail before loading if the extension is not built
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
    names = [tuple(args.served_model_name or [api_name(model)]) for model in models]
    choose_kv_cache_bytes(args, folders, draft)
    needs = memory_needs(args, models, names, folders, draft)
    max_memory = memory_budget(args.max_memory, needs)
    listening = _listen(args.host, args.port)

    from ..server.process import ServerProcess  # requires optional dependencies
    from ..server.settings import ModelSpec, Settings

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("tiny_llm").setLevel(logging.INFO)
    settings = Settings(
        model_names=names[0],
        adapter_names=tuple(_adapter_names(args, names[0])),
        max_memory=max_memory,
        idle_unload=args.idle_unload,
        api_key=api_key(args.api_key),
        allowed_hosts=(args.host, *args.allowed_host),
        cors_origins=tuple(args.cors_origin),
        max_queue=args.max_queue,
        max_body_bytes=args.max_body_bytes,
        request_timeout=args.request_timeout,
        drain_timeout=args.drain_timeout,
        watchdog=args.watchdog,
        generation_config=args.generation_config,
        chat_template=chat_template,
        response_store=args.response_store,
        log_requests=args.log_requests,
        log_contents=args.log_contents,
        tool_call_parser=args.tool_call_parser,
        record=args.record,
        prefix_warmup=args.prefix_warmup,
    )
    is_kept = len(models) == 1 and args.idle_unload is None
    specs = []
    for model, folder, aliases, need in zip(models, folders, names, needs, strict=True):
        task = resolve_task(args.task if model.task == "auto" else model.task, str(folder))
        # Other ranks resolve the name on their own machines.
        path = str(folder) if args.tensor_parallel_size == 1 else model.name
        specs.append(
            ModelSpec(
                aliases,
                folder if has_tokenizer(folder) else demo.TARGET_PATH,  # same as `load_weights`
                partial(_load, args, path, task, chat_template, folder, draft),
                task,
                need.total,
                is_kept or model.is_pinned,
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
    fits = fits_of_flags(args, folder, draft_folder)
    print_fits(console, model, fits, task)
    return LLM(
        model,
        kv_cache_bytes=fits[args.kv_cache_dtype or "auto"].kv_cache_bytes,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=args.max_model_len,
        chat_template=chat_template,
        block_size=args.block_size or DEFAULT_BLOCK_SIZE,
        draft_model=args.draft_model,
        num_drafts=args.num_drafts,
        load_format=args.load_format,
        task=task,
        scheduling_policy=args.scheduling_policy,
        step_time_target=_step_time_target(args),
        speculative=args.speculative,
        attention_backend=args.attention_backend or "paged",
        kv_cache_dtype=args.kv_cache_dtype or "auto",
        prefix_cache_dir=args.prefix_cache_dir,
        prefix_cache_disk_bytes=args.prefix_cache_disk_bytes,
        adapter_path=args.adapter_path,
        lora_modules=_lora_modules(args),
        tensor_parallel_size=args.tensor_parallel_size,
        tool_call_parser=args.tool_call_parser,
        seed=None,  # random, so that unseeded requests differ between runs
    )


def lora_module(text: str) -> tuple[str, str]:
    """Argument type: an adapter's name and folder."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"must be NAME=DIR, got {text}")
    return name, path


def _lora_modules(args: argparse.Namespace) -> dict[str, str] | None:
    return None if args.lora_modules is None else dict(args.lora_modules)


def _adapter_names(args: argparse.Namespace, model_names: Sequence[str]) -> list[str]:
    """The adapters' names.

    Raises:
        UserError: a name is a duplicate or the model's, or a flag is incompatible with adapters.
    """
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
    """Rejects a non-local host without authentication, unless explicitly allowed.

    Raises:
        UserError: the host is not local and neither --api-key nor --allow-anonymous is given.
    """
    has_key = api_key(args.api_key) is not None
    if args.host not in LOCAL_HOSTS and not has_key and not args.allow_anonymous:
        raise UserError(
            f"--host {args.host} exposes the server to other machines without an API key; set "
            "--api-key, or --allow-anonymous for a public server."
        )


if __name__ == "__main__":
    sys.exit(main())
