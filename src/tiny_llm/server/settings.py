"""Settings: the options of the server, each defined once, and the served models."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from ..engine.engine_args import EngineArgs
from ..engine.inputs.options import byte_count, check_options, option
from ..engine.inputs.sampling_params import SamplingParams
from ..engine.llm import LLM
from ..errors import UserError
from ..models.checkpoint.safe_io import ModelError, read_optional_json
from ..models.checkpoint.tokenizer_config import GENERATION_CONFIG

if TYPE_CHECKING:
    from ..models.output_heads import Task

# Default body size limit, derived from the context length. A token of text takes about 4 bytes of
# UTF-8, or up to 12 if JSON escapes its characters; the rest of the 32 is for tools and schemas.
MIN_BODY_BYTES = 2**22
MAX_BODY_BYTES = 2**24
BODY_BYTES_PER_TOKEN = 32

# Keys of generation_config.json that set defaults, as in vLLM.
GENERATION_CONFIG_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class ModelSpec:
    names: tuple[str, ...]  # names in the API; responses use the first
    args: EngineArgs  # with the model's path and its resolved task
    load: Callable[[], LLM]  # creates the engine; called in the engine thread
    # Memory requirement, weights plus KV cache; read at each load, because files may change.
    memory_bytes: Callable[[], int] = lambda: 0
    is_pinned: bool = True  # whether the model is loaded at startup and never unloaded

    @property
    def folder(self) -> Path:
        return Path(cast("str", self.args.model))

    @property
    def task(self) -> "Task":
        return cast("Task", self.args.task)


@dataclass(frozen=True)
class Settings:
    """Options of the server; those of engines are in `EngineArgs`.

    Attributes:
        model_names: a replica's model's names in the API; responses use the first.
        adapter_names: LoRA adapters, selected by a request's `model`.
        body_timeout: seconds without data after which an incomplete body is rejected.
        keep_alive: seconds of silence after which a stream sends a keep-alive.
        max_queued_outputs: maximum number of queued outputs per completion.
        max_memory: maximum bytes of weights and KV caches of all loaded models; the least recently
            used model is unloaded to stay within it; by default, the machine's memory.
        idle_unload: unload a model after S seconds without requests; by default, never.
        api_key: API key required from clients; or set TINY_LLM_API_KEY, which other users of the
            machine cannot see.
        allowed_hosts: Host header to accept when no API key is set, besides addresses and names
            without a dot, e.g. tiny.example; may be repeated; '*' accepts any.
        cors_origins: allowed CORS origin; may be repeated.
        generation_config: default sampling parameters: auto reads the model's
            generation_config.json (do_sample: false means greedy); vllm uses temperature 1 without
            top-p, top-k or min-p.
        response_store: keep the last N responses in memory, for previous_response_id and
            item_reference; 0 disables the store.
        strict_fields: reject requests with fields that would be ignored; by default, the log and
            the response header x-tiny-llm-ignored-fields name these.
        log_requests: log each request's method, path, status, id, token counts and timing; by
            default, only rejected and failed requests.
        log_contents: also log the bodies of requests and responses, up to 16 KiB each; implies
            --log-requests.
        record: record engine events, for replay in the web UI.
        prefix_warmup: prefill a conversation's next turn while the engine is idle; on by default.
        max_queue: maximum queued completions beyond --max-num-seqs; further requests get status
            429.
        max_body_bytes: maximum bytes of a request body; larger bodies get status 413; by default,
            32 bytes per token of context, but at least 4 MiB and at most 16 MiB.
        request_timeout: maximum seconds per request, including queueing; by default, unlimited.
        drain_timeout: maximum seconds to wait for running requests after SIGTERM.
        watchdog: maximum seconds per engine step; the process exits if a step takes longer.
    """

    model_names: tuple[str, ...] = ("demo",)
    adapter_names: tuple[str, ...] = ()
    body_timeout: float = 30.0
    keep_alive: float = 15.0
    max_queued_outputs: int = 256
    max_memory: int | None = option(None, "N", parse=byte_count)
    idle_unload: float | None = option(None, "S", 1e-3)
    api_key: str | None = option(None, "KEY")
    allowed_hosts: tuple[str, ...] = option(
        (), "NAME", parse=str, flag="--allowed-host", repeat={"action": "append"}
    )
    cors_origins: tuple[str, ...] = option(
        (), "URL", parse=str, flag="--cors-origin", repeat={"action": "append"}
    )
    generation_config: Literal["auto", "vllm"] = option("auto")
    response_store: int = option(0, "N")
    strict_fields: bool = option(False, doc_link="server.md#rejected-and-ignored-fields")
    log_requests: bool = option(False)
    log_contents: bool = option(False)
    record: Path | None = option(None, "FILE")
    prefix_warmup: bool = option(True)
    max_queue: int = option(256, "N")
    max_body_bytes: int | None = option(None, "N", 1)
    request_timeout: float | None = option(None, "S", 1e-3)
    drain_timeout: float = option(30.0, "S")
    watchdog: float = option(120.0, "S", 1e-3)

    def __post_init__(self) -> None:
        check_options(self)


def default_sampling_params(folder: Path, source: str) -> dict[str, Any]:
    """Reads the model's default sampling parameters.

    Args:
        source: "auto" reads `generation_config.json` (`do_sample: false` means greedy); "vllm"
            keeps the engine's defaults.

    Raises:
        ModelError: the file is unreadable, or a default is invalid.
    """
    if source == "vllm":
        return {}
    config = read_optional_json(folder, GENERATION_CONFIG)
    defaults = {key: config[key] for key in GENERATION_CONFIG_KEYS if config.get(key) is not None}
    try:
        SamplingParams(**defaults)
    except UserError as error:
        raise ModelError(f"{folder / GENERATION_CONFIG} cannot be used: {error}") from error
    return {**defaults, "temperature": 0.0} if config.get("do_sample") is False else defaults
