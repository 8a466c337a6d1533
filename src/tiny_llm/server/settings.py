"""What the flags of `serve` decide: limits, times, who may ask."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Settings:
    """How the server behaves; the engine has arguments of its own.

    Attributes:
        model_name: as clients see it.
        api_key: what clients must send; None lets everyone ask.
        allowed_hosts: names by which clients may call the server if there is no key, besides
            addresses and names without a dot; "*" for any.
        cors_origins: web pages of other origins that may ask.
        max_queue: answers that may wait beyond those that run; one more is refused with 429.
        max_body_bytes: size of a request's body.
        request_timeout: seconds from a request's arrival to its end; None for no limit.
        drain_timeout: seconds that running requests get after SIGTERM.
        watchdog: seconds that a step may take before the process is given up.
        generation_config: "auto" takes defaults of sampling from the model's
            `generation_config.json`, "vllm" takes vLLM's own.
        record: a file in which everything that the engine does is written; None for none.
        prefix_warmup: whether a conversation's next turn is computed ahead, as far as it is known.
        keep_alive: seconds without an event after which a stream sends a comment.
        max_queued_outputs: pieces of answers that wait for a slow reader, at most.
        slow_reader_timeout: how long that buffer may be full before the reader is dropped.
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
