"""Unsupported protocol fields and values, with reasons."""

import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

log = logging.getLogger("tiny_llm.server")

TEXT_ONLY = "this model reads and writes text only"
STATELESS = "this server is stateless; send the whole conversation"
DEPRECATED_NAME = "it is deprecated; use structured_outputs"
NO_BEAMS = "beam search is not implemented; completions are sampled"
CONTEXT_NOT_EDITED = "context_management is ignored: conversations are not edited"
NO_SERVER_TOOLS = "this server does not run tools; the client runs those in `tools`"

FIELD_REASONS = {
    # Fields of the Chat Completions API.
    "audio": TEXT_ONLY,
    "function_call": "it is deprecated; use tool_choice",
    "functions": "it is deprecated; use tools",
    "moderation": "this server does not moderate content",
    "prediction": "start the server with --speculative ngram to draft tokens from the prompt",
    "web_search_options": NO_SERVER_TOOLS,
    # Fields of vLLM, llama.cpp and SGLang.
    "allowed_token_ids": "use structured_outputs or logit_bias",
    "bad_words": "use logit_bias",
    "chat_template": "requests cannot override the server's chat template",
    "documents": "include them in a message",
    "ebnf": "use structured_outputs",
    "grammar": "use structured_outputs",
    "guided_choice": DEPRECATED_NAME,
    "guided_grammar": DEPRECATED_NAME,
    "guided_json": DEPRECATED_NAME,
    "guided_regex": DEPRECATED_NAME,
    "json_schema": "use response_format or structured_outputs",
    "length_penalty": NO_BEAMS,
    "n_predict": "use max_tokens",
    "priority": "the order of requests depends on the server's --scheduling-policy",
    "regex": "use structured_outputs",
    "truncate_prompt_tokens": "prompts are not truncated",
    "use_beam_search": NO_BEAMS,
    # Fields of the Responses API.
    "access_programs": "this server has no access programs",
    "background_options": "background responses are not supported",
    "conversation": STATELESS,
    "image": TEXT_ONLY,
    "prompt": "this server does not store prompts; send the text itself",
    # Fields of the Messages API.
    "compaction": "the conversation is not edited",
    "container": NO_SERVER_TOOLS,
    "fallbacks": "this server does not fall back to other models",
    "inference_geo": "inference runs on the server's machine",
    "mcp_servers": NO_SERVER_TOOLS,
}

# Reasons why a field supports only some values.
VALUE_REASONS = {
    "billing_policy.bill_to": "this server does not bill requests",
    "context_management.edits[].type": "the conversation is not edited",
    "tools[].allowed_callers[]": NO_SERVER_TOOLS,
    "tools[].type": "the model calls functions, which the client runs",
    "verbosity": "the model has no verbosity setting; request the desired length in a message",
    "reasoning.summary": "summaries are not supported; the full reasoning is returned",
    "service_tier": "this server has a single service tier",
}
VALUE_REASONS["text.verbosity"] = VALUE_REASONS["verbosity"]
VALUE_REASONS["reasoning.generate_summary"] = VALUE_REASONS["reasoning.summary"]

# Kind of media by content part type, for all protocols.
MEDIA_TYPES = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("audio", "input_audio"), "audio"),
    **dict.fromkeys(("document", "file", "input_file"), "document"),
}


@cache
def warn_once(sentence: str) -> None:
    """Logs a warning once; agents send the same fields in every request."""
    log.warning("%s", sentence)


def warn_ignored(field: str, items: Sequence[Mapping[str, Any]]) -> None:
    """Logs one warning for list items of unknown types; `field` names the list."""
    if items:
        types = list(islice(dict.fromkeys(repr(item.get("type"))[:40] for item in items), 5))
        log.warning(
            "ignoring unsupported items in %s: %d of types %s", field, len(items), ", ".join(types)
        )


def unsupported_value_message(field: str, given: str, allowed: str) -> str | None:
    """Explains why a field's value is unsupported; None without a reason."""
    reason = VALUE_REASONS.get(re.sub(r"\[\d+\]", "[]", field))
    if reason is None:
        return None
    return f"{field} must be {allowed}, got {given}: {reason}."


def unsupported_field_message(field: str) -> str | None:
    """Explains why a field is unsupported; None for an unknown field."""
    reason = FIELD_REASONS.get(field)
    return None if reason is None else f"{field} is not supported: {reason}."


def replace_media(content: Any) -> Any:
    """Replaces images, audio and documents in a tool result with text.

    Agents resend a tool result with every later turn, so rejecting it would end the conversation.
    """
    if not isinstance(content, list):
        return content
    return [_replace_medium(part) for part in content]


def _replace_medium(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    source = part.get("source") if kind == "document" else None
    is_text = isinstance(source, dict) and source.get("type") == "text"
    medium = MEDIA_TYPES.get(kind) if isinstance(kind, str) and not is_text else None
    if medium is None:
        return part
    warn_once(f"each {medium} in a tool result is replaced with text: the model reads text only")
    return {"type": "text", "text": f"[{medium} omitted: this model reads text only]"}
