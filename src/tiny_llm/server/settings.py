"""Server settings, from the flags of `serve`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Settings:
    """Server settings; the engine has its own arguments.

    Attributes:
        model_name: the model's name in the API.
        api_key: required API key; None for no authentication.
        allowed_hosts: host names allowed without a key, besides addresses and names without a dot;
            "*" for any.
        cors_origins: allowed CORS origins.
        max_queue: maximum number of waiting completions; beyond it, requests get 429. The server's
            own limit: it leaves `LLM(max_queue=…)` unset.
        max_body_bytes: maximum size of a request body.
        request_timeout: maximum seconds from arrival to completion, enforced by the engine between
            steps; None for no limit.
        drain_timeout: seconds for running requests to finish after SIGTERM.
        watchdog: maximum seconds of a step; beyond it, the process exits.
        generation_config: "auto" reads sampling defaults from the model's
            `generation_config.json`, "vllm" uses vLLM's.
        record: event log file; None for no log.
        prefix_warmup: whether to precompute the known prefix of a conversation's next turn.
        keep_alive: seconds of silence after which a stream sends a comment.
        max_queued_outputs: maximum number of queued outputs per completion.
        slow_reader_timeout: seconds for which that queue may be full before the client is dropped.
    """

    model_name: str = "demo"
    api_key: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_queue: int = 256
    max_body_bytes: int = 16 * 2**20
    request_timeout: float | None = None
    drain_timeout: float = 30.0
    watchdog: float = 120.0
    generation_config: Literal["auto", "vllm"] = "auto"
    record: Path | None = None
    prefix_warmup: bool = True
    keep_alive: float = 15.0
    max_queued_outputs: int = 256
    slow_reader_timeout: float = 30.0
