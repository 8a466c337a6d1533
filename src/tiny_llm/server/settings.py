"""Settings: the options of the server, each defined once, and the served models."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from ..engine.inputs.options import byte_count, check_options, option
from ..engine.llm import LLM
from ..engine.tool_calls.registry import AUTO
from ..models.heads.pooling import Task

# Default body size limit, derived from the context length. A token of text takes about 4 bytes of
# UTF-8, or up to 12 if JSON escapes its characters; the rest of the 32 is for tools and schemas.
MIN_BODY_BYTES = 2**22
MAX_BODY_BYTES = 2**24
BODY_BYTES_PER_TOKEN = 32


@dataclass(frozen=True)
class ModelSpec:
    names: tuple[str, ...]  # names in the API; responses use the first
    folder: Path  # model folder, for sampling defaults
    load: Callable[[], LLM]  # creates the engine; called in the engine thread
    task: Task = "generate"
    tool_call_parser: str = AUTO
    # Memory requirement, weights plus KV cache; read at each load, because files may change.
    memory_bytes: Callable[[], int] = lambda: 0
    is_pinned: bool = True  # whether the model is loaded at startup and never unloaded


@dataclass(frozen=True)
class Settings:
    """Options of the server; those of engines are in `EngineArgs`. Each model has a copy.

    Attributes:
        model_names: the model's names in the API; responses use the first.
        adapter_names: LoRA adapters, selected by a request's `model`.
        body_timeout: seconds without data after which an incomplete body is rejected.
        keep_alive: seconds of silence after which a stream sends a keep-alive.
        max_queued_outputs: maximum number of queued outputs per completion.
    """

    model_names: tuple[str, ...] = ("demo",)
    adapter_names: tuple[str, ...] = ()
    body_timeout: float = 30.0
    keep_alive: float = 15.0
    max_queued_outputs: int = 256
    max_memory: int | None = option(
        None,
        "maximum bytes of weights and KV caches of all loaded models; the least recently used "
        "model is unloaded to stay within it; by default, the machine's memory",
        *("N", byte_count),
    )
    idle_unload: float | None = option(
        None,
        "unload a model after S seconds without requests; by default, never",
        *("S", float, 1e-3),
    )
    api_key: str | None = option(
        None,
        "API key required from clients; or set TINY_LLM_API_KEY, which other users of the machine "
        "cannot see",
        "KEY",
    )
    allowed_hosts: tuple[str, ...] = option(
        (),
        "Host header to accept when no API key is set, besides addresses and names without a dot, "
        "e.g. tiny.example; may be repeated; '*' accepts any",
        "NAME",
        flag="--allowed-host",
        repeat={"action": "append"},
    )
    cors_origins: tuple[str, ...] = option(
        (),
        "allowed CORS origin; may be repeated",
        "URL",
        flag="--cors-origin",
        repeat={"action": "append"},
    )
    generation_config: Literal["auto", "vllm"] = option(
        "auto",
        "default sampling parameters: auto reads the model's generation_config.json (do_sample: "
        "false means greedy); vllm uses temperature 1 without top-p, top-k or min-p",
        choices=("auto", "vllm"),
    )
    response_store: int = option(
        0,
        "keep the last N responses in memory, for previous_response_id and item_reference; 0 "
        "disables the store",
        *("N", int),
    )
    strict_fields: bool = option(
        False,
        "reject requests with fields that would be ignored; by default, the log and the response "
        "header x-tiny-llm-ignored-fields name these",
        *(None, bool),
        page="server.md#rejected-and-ignored-fields",
    )
    log_requests: bool = option(
        False,
        "log each request's method, path, status, id, token counts and timing; by default, only "
        "rejected and failed requests",
        *(None, bool),
    )
    log_contents: bool = option(
        False,
        "also log the bodies of requests and responses, up to 16 KiB each; implies --log-requests",
        *(None, bool),
    )
    record: Path | None = option(
        None, "record engine events, for replay in the web UI", *("FILE", Path)
    )
    prefix_warmup: bool = option(
        True,
        "prefill a conversation's next turn while the engine is idle; on by default",
        *(None, bool),
    )
    max_queue: int = option(
        256,
        "maximum queued completions beyond --max-num-seqs; further requests get status 429",
        *("N", int),
    )
    max_body_bytes: int | None = option(
        None,
        "maximum bytes of a request body; larger bodies get status 413; by default, 32 bytes per "
        "token of context, but at least 4 MiB and at most 16 MiB",
        *("N", int, 1),
    )
    request_timeout: float | None = option(
        None,
        "maximum seconds per request, including queueing; by default, unlimited",
        *("S", float, 1e-3),
    )
    drain_timeout: float = option(
        30.0,
        "maximum seconds to wait for running requests after SIGTERM",
        *("S", float),
    )
    watchdog: float = option(
        120.0,
        "maximum seconds per engine step; the process exits if a step takes longer",
        *("S", float, 1e-3),
    )

    def __post_init__(self) -> None:
        check_options(self)

    @cached_property
    def model_name(self) -> str:
        return self.model_names[0]
