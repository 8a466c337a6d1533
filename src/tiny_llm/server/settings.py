"""Server settings, from the `serve` command's flags."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from ..engine.llm import LLM
from ..models.heads.pooling import Task

# Default body size limit, derived from the context length. A token of text takes about 4 bytes of
# UTF-8, or up to 12 if JSON escapes its characters; the rest of the 32 is for tools and schemas.
MIN_BODY_BYTES = 2**22
MAX_BODY_BYTES = 2**24
BODY_BYTES_PER_TOKEN = 32


@dataclass(frozen=True)
class ModelSpec:
    names: tuple[str, ...]  # names in the API; responses use the first
    folder: Path  # model folder, for the tokenizer and sampling defaults
    load: Callable[[], LLM]  # creates the engine; called in the engine thread
    task: Task = "generate"
    # Memory requirement, weights plus KV cache; read at each load, because files may change.
    memory_bytes: Callable[[], int] = lambda: 0
    is_pinned: bool = True  # whether the model is loaded at startup and never unloaded


@dataclass(frozen=True)
class Settings:
    """Server settings; engine options are arguments of `LLM`.

    Fields without a comment are described by `serve --help`.
    """

    # The model's names in the API; responses use the first. Each model has a copy of the settings.
    model_names: tuple[str, ...] = ("demo",)
    max_memory: int | None = None
    idle_unload: float | None = None
    adapter_names: tuple[str, ...] = ()  # LoRA adapters, selected by a request's `model`
    api_key: str | None = None
    # Host headers allowed without an API key, besides those that `AccessMiddleware` always allows.
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    # Maximum number of waiting completions; more get 429. Replaces the `max_queue` of `LLM`.
    max_queue: int = 256
    # None: `BODY_BYTES_PER_TOKEN` × context length, clamped to `MIN_BODY_BYTES`..`MAX_BODY_BYTES`.
    max_body_bytes: int | None = None
    body_timeout: float = 30.0  # seconds without data after which an incomplete body is rejected
    request_timeout: float | None = None
    drain_timeout: float = 30.0
    watchdog: float = 120.0
    generation_config: Literal["auto", "vllm"] = "auto"
    chat_template: str | None = None  # Jinja source; None for the model's template
    strict_fields: bool = False
    log_requests: bool = False
    log_contents: bool = False
    response_store: int = 0
    tool_call_parser: str = "auto"
    record: Path | None = None
    prefix_warmup: bool = True
    keep_alive: float = 15.0  # seconds of silence after which a stream sends a keep-alive
    max_queued_outputs: int = 256  # maximum number of queued outputs per completion

    @cached_property
    def model_name(self) -> str:
        return self.model_names[0]
