"""Serialization shared by chat completions and completions: chunks, usage, token ids."""

import time
import uuid
from collections.abc import Callable, Hashable, Sequence
from importlib.metadata import version
from typing import Any

from ..engine_client.request_stream import RequestStream
from ..http.errors import ApiError
from ..protocol.parsed_output import ParsedOutput
from ..protocol.request_fields import SamplingFields, StreamOptions
from ..protocol.streaming import (
    KEEP_ALIVE_COMMENT,
    TEXT_PLACEHOLDER,
    EventTemplate,
    error_event,
    sse_event,
)

SYSTEM_FINGERPRINT = f"tiny-llm-{version('tiny-llm')}"
DONE = b"data: [DONE]\n\n"


class ChoicesSerializer:
    def __init__(
        self,
        path: str,
        id_prefix: str,
        object_type: str,
        body: SamplingFields,
        stream: RequestStream,
        outputs: Sequence[ParsedOutput],
        has_logprobs: bool,
    ):
        self._path = path
        self._stream = stream
        self._outputs = outputs
        # Output token ids by choice, collected only for full responses.
        self._token_ids: list[list[int]] = [[] for _ in outputs]
        self._return_token_ids = bool(body.return_token_ids)
        self._envelope = {
            "id": f"{id_prefix}-{uuid.uuid4().hex}",
            "object": object_type,
            "created": int(time.time()),
            "model": stream.model_name,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
        options = body.stream_options or StreamOptions()
        self._include_usage = bool(options.include_usage)
        self._continuous_usage = self._include_usage and bool(options.continuous_usage_stats)
        # Whether chunks before the last contain only text, so that `_text_event` can encode them.
        self._is_text_only = not (has_logprobs or self._return_token_ids or self._continuous_usage)
        self._event_templates: dict[Hashable, EventTemplate] = {}

    def end_events(self) -> bytes:
        return (self._chunk([], with_usage=True) if self._include_usage else b"") + DONE

    def error_events(self, error: ApiError) -> bytes:
        return error_event(self._path, error.body(self._path))

    def keep_alive_event(self) -> bytes:
        return KEEP_ALIVE_COMMENT

    def _chunk(self, choices: list[Any], with_usage: bool = False, **fields: Any) -> bytes:
        if with_usage or self._continuous_usage:
            fields["usage"] = self._usage()
        return sse_event({**self._envelope, "choices": choices, **fields})

    def _text_event(self, key: Hashable, text: str, choice: Callable[[str], Any]) -> bytes:
        """Encodes a chunk in which only the text varies; one template per `key`."""
        template = self._event_templates.get(key)
        if template is None:
            template = EventTemplate(self._chunk([choice(TEXT_PLACEHOLDER)]))
            self._event_templates[key] = template
        return template(text)

    def _usage(self) -> dict[str, Any]:
        prompt_tokens = self._stream.prompt_tokens
        tokens = sum(output.tokens for output in self._outputs)
        reasoning_tokens = sum(output.reasoning_tokens for output in self._outputs)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": prompt_tokens + tokens,
            "prompt_tokens_details": {"cached_tokens": self._stream.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
        }
