"""Client of OpenAI's chat completions API, for `chat --url` and `agent --url`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...errors import UserError

if TYPE_CHECKING:
    import httpx2

CONNECT_TIMEOUT_SECONDS = 10.0
_JSON_ERRORS = (ValueError, RecursionError)  # raised for malformed or deeply nested JSON
_TEXT_FIELDS = ("content", "reasoning_content", "reasoning")
READ_TIMEOUT_SECONDS = 600.0  # a large model may prefill a long prompt for minutes


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
