"""A model behind a URL: any server that speaks OpenAI's chat completions."""

import argparse
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ...errors import UserError
from ..parsing.arguments import API_KEY_VARIABLE, api_key
from ..parsing.command import console

if TYPE_CHECKING:
    import httpx2

Messages = Sequence[dict[str, str]]

# Flags that choose how this process computes; behind a URL another one does.
LOCAL_FLAGS = ("draft_model", "loader", "device", "enable_flash_attn", "sampler_top_k")
CONNECT_TIMEOUT_SECONDS = 10.0
READ_TIMEOUT_SECONDS = 600.0  # a large model may read a long prompt for minutes


def add_remote_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server, and how it is asked."""
    parser.add_argument(
        "--url",
        metavar="URL",
        help="ask this OpenAI server, such as http://127.0.0.1:8000; --model is then a name that "
        "it knows, and its first model if not given",
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"for --url; the variable {API_KEY_VARIABLE} is the same"
    )
    parser.add_argument(
        "--reasoning-effort",
        metavar="LEVEL",
        help="for --url: how much the model thinks, such as none, low or high; if not given, the "
        "server decides",
    )


def check_remote_arguments(args: argparse.Namespace) -> None:
    """Refuses flags that have no effect with --url, or without it.

    Raises:
        UserError: the first such flag.
    """
    if args.url is None:
        for name in ("api_key", "reasoning_effort"):
            if getattr(args, name) is not None:
                raise UserError(f"{_flag(name)} is for a server; give its address with --url.")
        return
    for name in LOCAL_FLAGS:
        if getattr(args, name) is not None:
            raise UserError(f"{_flag(name)} has no effect on a server; leave it or --url out.")
    if args.solution != "tiny_llm":
        raise UserError("--solution has no effect on a server; leave it or --url out.")
    if args.enable_thinking:
        raise UserError("--enable-thinking: a server is asked with --reasoning-effort high.")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class RemoteBackend:
    """Answers conversations.

    Args:
        args: flags, checked by `check_remote_arguments`.
        client: sends the requests; one of its own if None.

    Attributes:
        name: of the model.

    Raises:
        UserError: no server answers there, or it has no model; or httpx2 is not installed.
    """

    def __init__(self, args: argparse.Namespace, client: "httpx2.Client | None" = None):
        try:
            import httpx2
        except ImportError as error:
            raise UserError(
                "--url needs httpx2; `pip install 'tiny-llm[chat]'` installs it."
            ) from error
        self._url = _base_url(args.url)
        key = api_key(args.api_key)
        timeout = httpx2.Timeout(READ_TIMEOUT_SECONDS, connect=CONNECT_TIMEOUT_SECONDS)
        self._client = client or httpx2.Client(timeout=timeout)
        if key:
            self._client.headers["Authorization"] = f"Bearer {key}"
        self._failures = httpx2.HTTPError
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
        """The next turn's text as it comes; thoughts stand between <think> and </think>.

        Raises:
            UserError: the server refuses the conversation, or does not finish the answer.
        """
        body = {**self._options, "messages": list(messages)}
        is_thinking = False
        for delta in self._deltas(body):
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            if thought:
                yield thought if is_thinking else f"<think>\n{thought}"
                is_thinking = True
            if delta.get("content"):
                yield ("\n</think>\n\n" if is_thinking else "") + delta["content"]
                is_thinking = False
        if is_thinking:
            yield "\n</think>"

    def _deltas(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What each event adds to the message."""
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
        except self._failures as error:
            raise UserError(f"The server at {self._url} fails: {_reason(error)}.") from error
        raise UserError(f"The server at {self._url} ended the answer before it was finished.")

    def _first_model(self) -> str:
        try:
            response = self._client.get(f"{self._url}/models")
        except self._failures as error:
            raise UserError(
                f"no server answers at {self._url} ({_reason(error)}); `tiny-llm serve` starts one."
            ) from error
        if response.status_code != 200:
            raise UserError(_error_message(response))
        try:
            name = response.json()["data"][0]["id"]
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{self._url}/models lists no model; give --model.") from error
        return str(name)


def _base_url(url: str) -> str:
    """The address that paths such as /models follow; /v1 if the address has no path.

    Raises:
        UserError: it is not an address of the web.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(f"--url is '{url}'; it must begin with http:// or https:// and a host.")
    return url.rstrip("/") + ("" if parts.path.strip("/") else "/v1")


def _delta(data: str) -> Iterator[dict[str, Any]]:
    """The delta of an event, if it has one.

    Raises:
        UserError: the event is an error, or no JSON.
    """
    try:
        event = json.loads(data)
        message = event["error"]["message"] if "error" in event else None
        deltas = [] if message is not None else [choice["delta"] for choice in event["choices"]]
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"The server sent an event that is not OpenAI's: {data[:80]}") from error
    if message is not None:
        raise UserError(f"The server says: {message}")
    yield from deltas


def _error_message(response: "httpx2.Response") -> str:
    """The server's own sentence, or what there is instead."""
    try:
        text = str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        text = " ".join(response.text.split())[:200] or "no reason is given"
    return f"The server refuses ({response.status_code}): {text}"


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
