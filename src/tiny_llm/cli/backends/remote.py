"""Chat client for servers with OpenAI's chat completions API."""

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...errors import UserError
from ..parsing.arguments import API_KEY_VARIABLE, add_flag, api_key, flag_name
from ..parsing.command import console

if TYPE_CHECKING:
    import httpx2

Messages = Sequence[dict[str, str]]

# Flags that only affect inference in this process.
LOCAL_FLAGS = (
    *("draft_model", "speculative", "num_drafts", "loader", "device", "enable_flash_attn"),
    *("attention_backend", "kv_cache_dtype", "activation_bits", "block_size"),
    *("prefix_cache_dir", "prefix_cache_disk_bytes", "adapter_path", "sampler_top_k"),
)
CONNECT_TIMEOUT_SECONDS = 10.0
READ_TIMEOUT_SECONDS = 600.0  # a large model may prefill a long prompt for minutes


def add_remote_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --url and the flags that require it."""
    flag = partial(add_flag, parser)
    flag(
        "--url URL",
        "base URL of an OpenAI-compatible server, e.g. http://127.0.0.1:8000; --model then "
        "selects one of its models, by default the first",
    )
    flag("--api-key KEY", f"API key for --url; or set {API_KEY_VARIABLE}")
    flag(
        "--reasoning-effort LEVEL",
        "reasoning effort for --url, e.g. none, low or high; by default, the server's",
    )


def check_remote_arguments(args: argparse.Namespace) -> None:
    """Rejects local flags with --url, and remote flags without it."""
    if args.url is None:
        for name in ("api_key", "reasoning_effort"):
            if getattr(args, name) is not None:
                raise UserError(f"{flag_name(name)} requires --url.")
        return
    for name in LOCAL_FLAGS:
        if getattr(args, name) is not None:
            raise UserError(f"{flag_name(name)} has no effect with --url; omit one of them.")
    if args.solution != "tiny_llm":
        raise UserError("--solution has no effect with --url; omit one of them.")
    if args.enable_thinking:
        raise UserError(
            "--enable-thinking has no effect with --url; use --reasoning-effort high instead."
        )


class RemoteBackend:
    """Client of a chat completions API; expects validated flags.

    Raises:
        UserError: the server is unreachable or has no model, or httpx2 is not installed.
    """

    def __init__(self, args: argparse.Namespace, client: "httpx2.Client | None" = None):
        try:
            import httpx2
        except ImportError as error:
            raise UserError("--url requires httpx2; run `pip install 'tiny-llm[chat]'`.") from error
        self._url = _base_url(args.url)
        key = api_key(args.api_key)
        timeout = httpx2.Timeout(READ_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS)
        self._client = client or httpx2.Client(timeout=timeout)
        if key:
            self._client.headers["Authorization"] = f"Bearer {key}"
        self._http_error = httpx2.HTTPError
        self.name: str = args.model or self._first_model()
        self._options = {
            "model": self.name,
            "stream": True,
            "temperature": args.sampler_temp,
            "top_p": args.sampler_top_p,
            "seed": args.seed,
            "max_completion_tokens": args.max_tokens,
            "reasoning_effort": args.reasoning_effort,
        }
        self._options = {k: value for k, value in self._options.items() if value is not None}
        console.print(f"model: {self.name} at {self._url}", soft_wrap=True)

    def stream_chat(self, messages: Messages) -> Iterator[str]:
        """Yields the assistant's message in deltas; reasoning is in <think>…</think>.

        Raises:
            UserError: the server rejects the request, or the stream ends early.
        """
        body = {**self._options, "messages": list(messages)}
        in_reasoning = False
        for delta in self._deltas(body):
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            if reasoning:
                yield reasoning if in_reasoning else f"<think>\n{reasoning}"
                in_reasoning = True
            if delta.get("content"):
                yield ("\n</think>\n\n" if in_reasoning else "") + delta["content"]
                in_reasoning = False
        if in_reasoning:
            yield "\n</think>"

    def _deltas(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the delta of each server-sent event."""
        try:
            with self._client.stream("POST", f"{self._url}/chat/completions", json=body) as stream:
                if stream.status_code != 200:
                    stream.read()
                    raise UserError(_error_message(stream))
                for line in stream.iter_lines():
                    data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                    if data == "[DONE]":
                        return
                    if data:
                        yield from _delta(data)
        except self._http_error as error:
            raise UserError(f"the request to {self._url} failed: {_reason(error)}.") from error
        raise UserError(f"{self._url} closed the stream before the end of the response.")

    def _first_model(self) -> str:
        try:
            response = self._client.get(f"{self._url}/models")
        except self._http_error as error:
            raise UserError(
                f"cannot connect to {self._url} ({_reason(error)}); `tiny-llm serve` starts a "
                "server."
            ) from error
        if response.status_code != 200:
            raise UserError(_error_message(response))
        try:
            name = response.json()["data"][0]["id"]
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{self._url}/models lists no models; set --model.") from error
        return str(name)


def _base_url(url: str) -> str:
    """Base URL of the API; appends /v1 to a URL without a path."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(
            f"--url must start with http:// or https://, followed by a host, got '{url}'."
        )
    return url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")


def _delta(data: str) -> Iterator[dict[str, Any]]:
    """Yields the delta of an event, or nothing if the event has no choices."""
    try:
        event = json.loads(data)
        message = event["error"]["message"] if "error" in event else None
        deltas = [] if message is not None else [choice["delta"] for choice in event["choices"]]
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"malformed event from the server: {data[:80]}") from error
    if message is not None:
        raise UserError(f"server error: {message}")
    yield from deltas


def _error_message(response: "httpx2.Response") -> str:
    """Status and message of an error; the body if not in OpenAI's format."""
    try:
        text = str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        text = " ".join(response.text.split())[:200] or "no message"
    return f"server error {response.status_code}: {text}"


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
