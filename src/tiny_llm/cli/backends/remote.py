"""Chat backend that uses a server with OpenAI's chat completions API."""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial

from ...engine.engine_args import EngineArgs
from ...engine.inputs.options import options_of
from ...errors import UserError
from ..parsing.arguments import API_KEY_VARIABLE, add_flag, api_key, flag_name, is_set
from ..parsing.command import console
from .openai_client import OpenAIClient

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
    """Model on a server; expects checked flags. See `OpenAIClient` for errors."""

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
