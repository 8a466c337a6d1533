"""Chat backend on a server, and a client of OpenAI's chat completions API."""

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...engine.engine_args import EngineArgs
from ...engine.inputs.options import options_of
from ...errors import UserError
from ..parsing.arguments import API_KEY_VARIABLE, add_flag, api_key, flag_name, is_set
from ..parsing.command import console

if TYPE_CHECKING:
    import httpx2

CONNECT_TIMEOUT_SECONDS = 10.0
_JSON_ERRORS = (ValueError, RecursionError)  # raised for malformed or deeply nested JSON
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning")
READ_TIMEOUT_SECONDS = 600.0  # a large model may prefill a long prompt for minutes

Messages = Sequence[dict[str, str]]

# Flags that only affect inference in this process.
LOCAL_FLAGS = (*options_of(EngineArgs), "loader", "device", "enable_flash_attn", "sampler_top_k")


def add_remote_arguments(parser: argparse.ArgumentParser) -> None:
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
    if args.url is None:
        for name in ("api_key", "reasoning_effort"):
            if getattr(args, name) is not None:
                raise UserError(f"{flag_name(name)} requires --url.")
        return
    for name in LOCAL_FLAGS:
        if is_set(args, name):
            raise UserError(f"{flag_name(name)} has no effect with --url; omit one of them.")
    if args.solution == "mlx":
        raise UserError("--solution mlx has no effect with --url; omit one of them.")
    if args.enable_thinking:
        raise UserError(
            "--enable-thinking has no effect with --url; use --reasoning-effort high instead."
        )


class RemoteBackend:
    """Model on a server; requires validated flags. Raises the errors of `OpenAIClient`."""

    def __init__(self, args: argparse.Namespace):
        self._client = OpenAIClient(args.url, args.model, api_key(args.api_key))
        self.name = self._client.model
        options = {
            "temperature": args.sampler_temp,
            "top_p": args.sampler_top_p,
            "seed": args.seed,
            "max_completion_tokens": args.max_tokens,
            "reasoning_effort": args.reasoning_effort,
        }
        self._options = {k: value for k, value in options.items() if value is not None}
        console.print(f"model: {self.name} at {self._client.url}", soft_wrap=True)

    def stream_chat(self, messages: Messages) -> Iterator[str]:
        """Yields the assistant's message in deltas; reasoning is in <think>…</think>.

        Raises:
            UserError: the server rejects the request, or the stream ends early.
        """
        in_reasoning = False
        for delta in self._client.stream({**self._options, "messages": list(messages)}):
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            if reasoning:
                yield reasoning if in_reasoning else f"<think>\n{reasoning}"
                in_reasoning = True
            if delta.get("content"):
                yield ("\n</think>\n\n" if in_reasoning else "") + delta["content"]
                in_reasoning = False
        if in_reasoning:
            yield "\n</think>"


class OpenAIClient:
    """Client of one model on a server.

    Args:
        url: base URL; /v1 is appended to a URL without a path.
        model: model name; None selects the first model listed by the server.

    Raises:
        UserError: httpx2 is not installed, or the server is unreachable or rejects a request.
    """

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None):
        try:
            import httpx2
        except ImportError as error:
            raise UserError("--url requires httpx2; run `pip install 'tiny-llm[chat]'`.") from error
        self.url = _base_url(url)
        timeout = httpx2.Timeout(READ_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS)
        self._client = httpx2.Client(timeout=timeout)
        if api_key:
            self._client.headers["Authorization"] = f"Bearer {api_key}"
        self._http_errors = (httpx2.HTTPError, httpx2.InvalidURL)
        self._connect_errors = (httpx2.ConnectError, httpx2.ConnectTimeout)
        self.model: str = model or self._first_model()

    def complete(self, body: dict[str, Any]) -> Any:
        """Requests a chat completion; returns the JSON response, or None if not JSON."""
        return self._request("POST", "/chat/completions", {**body, "model": self.model})

    def stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Streams a chat completion; yields the deltas of its server-sent events."""
        body = {**body, "model": self.model, "stream": True}
        with self._send("POST", "/chat/completions", body) as response:
            for line in response.iter_lines():
                data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                if data == "[DONE]":
                    return
                if data:
                    yield from _deltas(data)
        raise UserError(f"{self.url} closed the stream before the end of the response.")

    def _first_model(self) -> str:
        try:
            return str(self._request("GET", "/models")["data"][0]["id"])
        except (LookupError, TypeError) as error:
            raise UserError(f"{self.url}/models lists no models; pass --model.") from error

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        with self._send(method, path, body) as response, suppress(*_JSON_ERRORS):
            return json.loads(response.read())
        return None

    @contextmanager
    def _send(self, method: str, path: str, body: Any = None) -> Iterator["httpx2.Response"]:
        # `json=body` would fail for lone surrogates, e.g. in file names that are not UTF-8.
        content = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"}
        try:
            with self._client.stream(
                method, self.url + path, content=content, headers=headers
            ) as response:
                if response.status_code != 200:
                    response.read()
                    raise UserError(_error_message(response))
                yield response
        except self._http_errors as error:
            reason = str(error).rstrip(".") or type(error).__name__
            if isinstance(error, self._connect_errors):
                reason += "; `tiny-llm serve` starts a server"
            raise UserError(f"the request to {self.url} failed: {reason}.") from error


def _base_url(url: str) -> str:
    """Base URL of the API; appends /v1 to a URL without a path."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(
            f"the URL must start with http:// or https://, followed by a host, got '{url}'."
        )
    return url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")


def _deltas(data: str) -> list[dict[str, Any]]:
    try:
        event = json.loads(data)
        if "error" not in event:
            deltas = [choice["delta"] for choice in event["choices"]]
            for delta in deltas:
                "".join(delta.get(name) or "" for name in _TEXT_FIELDS)  # TypeError if not text
            return deltas
        message = f"server error: {event['error']['message']}"
    except (*_JSON_ERRORS, LookupError, TypeError, AttributeError):
        message = f"malformed event from the server: {data[:80]}"
    raise UserError(message)


def _error_message(response: "httpx2.Response") -> str:
    """Status and message of an error response; its body if it has no message."""
    try:
        text = str(response.json()["error"]["message"])
    except (*_JSON_ERRORS, LookupError, TypeError):
        text = " ".join(response.text.split())[:200] or "no message"
    return f"server error {response.status_code}: {text}"
