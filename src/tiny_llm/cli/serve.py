"""HTTP server with OpenAI- and Anthropic-compatible APIs."""

import argparse
import logging
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from .. import demo, kernels
from ..engine.llm import DEFAULT_KV_CACHE_BYTES, LLM
from ..errors import UserError
from ..models import default_model
from ..models.checkpoint.layout import has_tokenizer
from ..models.hub import find_config, find_model
from .backends.checkpoint import set_device
from .parsing.arguments import (
    API_KEY_VARIABLE,
    DEFAULT_BLOCK_SIZE,
    add_engine_arguments,
    api_key,
    in_range,
)
from .parsing.command import CommandParser, console, run_command

LIBRARIES = ("fastapi", "uvicorn", "httptools", "pydantic", "prometheus_client")
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


def main(argv: Sequence[str] | None = None, prog: str = "serve") -> int:
    """Runs the command. Exit status: 0, 1 if the engine failed, 2 for a user error."""
    return run_command(prog, lambda: _serve(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    """Parser of the command's flags."""
    parser = CommandParser(prog, __doc__)
    _add_model_arguments(parser)
    _add_access_arguments(parser)
    _add_limits(parser)
    return parser


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="as for `main`: a name, hub id or folder")
    add_engine_arguments(parser)
    parser.add_argument(
        "--kv-cache-bytes",
        type=int,
        default=DEFAULT_KV_CACHE_BYTES,
        metavar="N",
        help="memory for the KV cache",
    )
    parser.add_argument(
        "--max-num-seqs", type=int, default=32, metavar="N", help="maximum running sequences"
    )
    parser.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=256,
        metavar="N",
        help="maximum tokens per step",
    )
    parser.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="model name in the API; by default, the last part of --model",
    )
    parser.add_argument(
        "--generation-config",
        choices=["auto", "vllm"],
        default="auto",
        help="default sampling parameters: the model's generation_config.json, or vLLM's",
    )


def _add_access_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to listen on")
    parser.add_argument(
        "--port",
        type=in_range(0, 65535),
        default=8000,
        metavar="N",
        help="port to listen on; 0 picks a free one",
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"API key required from clients; or set {API_KEY_VARIABLE}",
    )
    parser.add_argument(
        "--allow-anonymous",
        action="store_true",
        help="listen on a non-local host without an API key",
    )
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="accepted Host header of requests without an API key, such as tiny.example; "
        "repeatable, '*' for any",
    )
    parser.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="URL",
        help="allowed CORS origin; repeatable",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write engine events, for replay in the web UI"
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
        help="maximum queued requests; more get status 429",
    )
    parser.add_argument(
        "--max-body-bytes",
        type=in_range(1),
        default=2**24,
        metavar="N",
        help="maximum size of a request body",
    )
    parser.add_argument(
        "--request-timeout",
        type=in_range(1e-3, convert=float),
        metavar="S",
        help="seconds per request, queueing included; unlimited by default",
    )
    parser.add_argument(
        "--drain-timeout",
        type=in_range(0, convert=float),
        default=30.0,
        metavar="S",
        help="seconds for running requests after SIGTERM",
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
    kernels.extension()  # fails before loading if the extension is not built
    name, reason = (args.model, None) if args.model is not None else default_model()
    console.print(f"model: {name}" + (f" ({reason})" if reason else ""), soft_wrap=True)
    find = find_config if args.load_format == "dummy" else find_model
    folder = find(name, console)
    if args.draft_model is not None:
        find(args.draft_model, console)
    listening = _listen(args.host, args.port)

    from ..server.process import ServerProcess  # imports the optional dependencies of this command
    from ..server.settings import Settings

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("tiny_llm").setLevel(logging.INFO)
    settings = Settings(
        model_name=args.served_model_name or Path(name).name or name,
        api_key=api_key(args.api_key),
        allowed_hosts=(args.host, *args.allowed_host),
        cors_origins=tuple(args.cors_origin),
        max_queue=args.max_queue,
        max_body_bytes=args.max_body_bytes,
        request_timeout=args.request_timeout,
        drain_timeout=args.drain_timeout,
        watchdog=args.watchdog,
        generation_config=args.generation_config,
        record=args.record,
        prefix_warmup=args.prefix_warmup,
    )
    tokenizer_folder = folder if has_tokenizer(folder) else demo.TARGET_PATH  # as `load_weights`
    # Other ranks resolve the name on their own machines.
    model = str(folder) if args.tensor_parallel_size == 1 else name
    return ServerProcess(settings, tokenizer_folder, lambda: _load(args, model), listening).run()


def _load(args: argparse.Namespace, model: str) -> LLM:
    set_device(args.device)
    return LLM(
        model,
        kv_cache_bytes=args.kv_cache_bytes,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        block_size=args.block_size or DEFAULT_BLOCK_SIZE,
        draft_model=args.draft_model,
        num_drafts=args.num_drafts,
        load_format=args.load_format,
        speculative=args.speculative,
        attention_backend=args.attention_backend or "paged",
        tensor_parallel_size=args.tensor_parallel_size,
        seed=None,  # unseeded requests differ from run to run
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UserError(
            f"cannot listen on {host}:{port} ({error.strerror}); give another --port."
        ) from error
    return listening


def _check_host(args: argparse.Namespace) -> None:
    """Rejects an unintentionally public server.

    Raises:
        UserError: the host is not local, and neither --api-key nor --allow-anonymous is given.
    """
    has_key = api_key(args.api_key) is not None
    if args.host not in LOCAL_HOSTS and not has_key and not args.allow_anonymous:
        raise UserError(
            f"--host {args.host} is reachable from other machines without an API key; give "
            "--api-key, or --allow-anonymous for a public server."
        )


if __name__ == "__main__":
    sys.exit(main())
