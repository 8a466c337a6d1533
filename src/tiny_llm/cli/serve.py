"""The HTTP server: OpenAI's and Anthropic's protocols in front of the engine."""

import argparse
import logging
import socket
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from .. import demo, kernels
from ..engine.llm import LLM
from ..errors import UserError
from ..models import default_model
from ..models.checkpoint.layout import has_tokenizer
from ..models.hub import find_config, find_model
from .backends.checkpoint import set_device
from .parsing.arguments import (
    API_KEY_VARIABLE,
    add_attention_backend,
    add_load_format,
    add_speculative_argument,
    add_tensor_parallel_size,
    api_key,
    check_attention_backend,
    check_load_format,
    check_speculative,
    check_tensor_parallel_size,
)
from .parsing.command import CommandParser, console, run_command

LIBRARIES = ("fastapi", "uvicorn", "httptools", "pydantic", "prometheus_client")
LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


def main(argv: Sequence[str] | None = None, prog: str = "serve") -> int:
    """Runs the command; the exit status is 0, 1 if the engine failed, 2 for a user's mistake."""
    return run_command(prog, lambda: _serve(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    """The command's flags."""
    parser = CommandParser(prog, __doc__)
    _add_engine_arguments(parser)
    _add_access_arguments(parser)
    _add_limits(parser)
    return parser


def _add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="as for `main`: a name, hub id or folder")
    parser.add_argument("--draft-model", metavar="NAME", help="a smaller model that guesses tokens")
    add_load_format(parser)
    add_speculative_argument(parser)
    add_attention_backend(parser)
    add_tensor_parallel_size(parser)
    parser.add_argument("--device", metavar="{cpu,gpu}", help="where to compute")
    parser.add_argument(
        "--kv-cache-bytes",
        type=int,
        default=2**29,
        metavar="N",
        help="memory for keys and values",
    )
    parser.add_argument(
        "--max-num-seqs", type=int, default=32, metavar="N", help="answers that run together"
    )
    parser.add_argument(
        "--max-num-batched-tokens", type=int, default=256, metavar="N", help="tokens of a step"
    )
    parser.add_argument(
        "--served-model-name", metavar="NAME", help="what clients call the model; --model's name"
    )
    parser.add_argument(
        "--generation-config",
        default="auto",
        metavar="{auto,vllm}",
        help="defaults of sampling: the model's generation_config.json, or vLLM's",
    )


def _add_access_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, metavar="N", help="0 takes a free one")
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"what clients must send; {API_KEY_VARIABLE} is the same"
    )
    parser.add_argument(
        "--allow-anonymous", action="store_true", help="listen on another host without a key"
    )
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which clients may call a server without a key, such as tiny.example; "
        "several times for several, '*' for any",
    )
    parser.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="URL",
        help="a web page's origin that may ask; several times for several",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write what the engine does; the page plays it"
    )
    parser.add_argument(
        "--prefix-warmup",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compute a conversation's next turn while there is nothing else to do",
    )
    parser.add_argument(
        "--max-queue", type=int, default=256, metavar="N", help="answers that may wait"
    )
    parser.add_argument(
        "--max-body-bytes", type=int, default=2**24, metavar="N", help="size of a request"
    )
    parser.add_argument(
        "--request-timeout", type=float, metavar="S", help="seconds for an answer, with the queue"
    )
    parser.add_argument(
        "--drain-timeout", type=float, default=30.0, metavar="S", help="seconds after SIGTERM"
    )
    parser.add_argument(
        "--watchdog", type=float, default=120.0, metavar="S", help="seconds that a step may take"
    )


def _serve(args: argparse.Namespace) -> int:
    check_load_format(args)
    _check(args)
    check_speculative(args)
    check_attention_backend(args)
    check_tensor_parallel_size(args)
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise UserError(
            f"the server needs {', '.join(missing)}; `pip install 'tiny-llm[serve]'` installs it."
        )
    kernels.extension()  # if it is missing, better said now than after loading
    name, reason = (args.model, None) if args.model is not None else default_model()
    console.print(f"model: {name}" + (f" ({reason})" if reason else ""), soft_wrap=True)
    find = find_config if args.load_format == "dummy" else find_model
    folder = find(name, console)
    if args.draft_model is not None:
        find(args.draft_model, console)
    listening = _listen(args.host, args.port)

    from ..server.process import ServerProcess  # needs libraries that only this command has
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
    texts = folder if has_tokenizer(folder) else demo.TARGET_PATH  # as `load_weights` has it
    # Other ranks look for the model by themselves, on their own machines.
    found = str(folder) if args.tensor_parallel_size == 1 else name
    return ServerProcess(settings, texts, lambda: _load(args, found), listening).run()


def _load(args: argparse.Namespace, model: str) -> LLM:
    set_device(args.device)
    return LLM(
        model,
        kv_cache_bytes=args.kv_cache_bytes,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        draft_model=args.draft_model,
        load_format=args.load_format,
        speculative=args.speculative,
        attention_backend=args.attention_backend or "paged",
        tensor_parallel_size=args.tensor_parallel_size,
        seed=None,  # answers without a seed of their own differ from run to run
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
            f"the server cannot listen on {host}:{port} ({error.strerror}); give another --port."
        ) from error
    return listening


def _check(args: argparse.Namespace) -> None:
    """Refuses flags out of their range, and a server that is open to the network by mistake.

    Raises:
        UserError: the first such flag.
    """
    if args.generation_config not in ("auto", "vllm"):
        raise UserError(
            f"--generation-config '{args.generation_config}' is unknown; give auto or vllm."
        )
    if not 0 <= args.port <= 65535:
        raise UserError(f"--port is {args.port}; it must be between 0 and 65535.")
    for flag in ("max-queue", "max-body-bytes", "drain-timeout", "watchdog", "request-timeout"):
        value = getattr(args, flag.replace("-", "_"))
        least = 0 if flag in ("max-queue", "drain-timeout") else 1e-3
        if value is not None and not value >= least:
            raise UserError(f"--{flag} is {value}; it must be at least {least:g}.")
    has_key = api_key(args.api_key) is not None
    if args.host not in LOCAL_HOSTS and not has_key and not args.allow_anonymous:
        raise UserError(
            f"--host {args.host} lets other machines in, and there is no key; give --api-key, or "
            "--allow-anonymous if everyone may ask."
        )


if __name__ == "__main__":
    sys.exit(main())
