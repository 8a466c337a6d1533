"""Fields and content that are rejected, ignored or replaced, with reasons."""

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any
from urllib.parse import quote

from .errors import bad_request, current_record

log = logging.getLogger("tiny_llm.server")

HEADER = b"x-tiny-llm-ignored-fields"
MAX_FIELDS = 32  # maximum number of fields named per request
MAX_NAME_CHARS = 100  # maximum length of a name
MAX_LOGGED_FIELDS = 1000  # maximum number of fields named in the log

_logged: set[tuple[str, str]] = set()  # paths of endpoints and fields

TEXT_ONLY = "this model reads and writes text only"
STATELESS = "this server is stateless; send the whole conversation"
DEPRECATED_NAME = "it is deprecated; use structured_outputs"
NO_SERVER_TOOLS = "this server does not run tools; the client runs those in `tools`"
NOT_IMPLEMENTED = "this sampling method is not implemented"

# Fields that would change the completion. Other unknown fields are ignored.
FIELD_REASONS = {
    # Fields of the Chat Completions API.
    "audio": TEXT_ONLY,
    "function_call": "it is deprecated; use tool_choice",
    "functions": "it is deprecated; use tools",
    "moderation": "this server does not moderate content",
    "suffix": "fill-in-the-middle is not implemented",
    "web_search_options": NO_SERVER_TOOLS,
    # Fields of vLLM, llama.cpp and SGLang.
    "allowed_token_ids": "use structured_outputs or logit_bias",
    "bad_words": "use logit_bias",
    "chat_template": "requests cannot override the server's chat template",
    "custom_logit_processor": "requests cannot contain code",
    "documents": "include them in a message",
    "dry_multiplier": NOT_IMPLEMENTED,
    "ebnf": "use structured_outputs",
    "grammar": "use structured_outputs",
    "guided_choice": DEPRECATED_NAME,
    "guided_grammar": DEPRECATED_NAME,
    "guided_json": DEPRECATED_NAME,
    "guided_regex": DEPRECATED_NAME,
    "json_schema": "use response_format or structured_outputs",
    "logits_processors": "requests cannot contain code",
    "lora_path": "select an adapter by its name as the model",
    "mirostat": NOT_IMPLEMENTED,
    "n_predict": "use max_tokens",
    "prompt_embeds": "prompts are text or token ids",
    "regex": "use structured_outputs",
    "repeat_penalty": "use repetition_penalty",
    "truncate_prompt_tokens": "prompts are not truncated",
    "typical_p": NOT_IMPLEMENTED,
    "use_beam_search": "beam search is not implemented; completions are sampled",
    "xtc_probability": NOT_IMPLEMENTED,
    # Fields of the Responses API.
    "background": "the response is sent in this connection",
    "conversation": STATELESS,
    "prompt": "this server does not store prompts; send the text itself",
    # Fields of the Messages API.
    "container": NO_SERVER_TOOLS,
    "mcp_servers": NO_SERVER_TOOLS,
    "thread": STATELESS,
}
OFF_VALUES = {"repeat_penalty": 1, "typical_p": 1}  # besides null, false, 0, "" and []
# With this error code, clients retry without `thread`.
ERROR_CODES = {"thread": "thread_unsupported_request"}

# Kind of media by content part type, for all protocols.
MEDIA_TYPES = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("audio", "input_audio"), "audio"),
    **dict.fromkeys(("document", "file", "input_file"), "document"),
}


def check_supported(fields: Mapping[str, Any]) -> None:
    """Rejects those of a body's unknown fields that are in `FIELD_REASONS` and not turned off."""
    for name in FIELD_REASONS.keys() & fields.keys():
        if fields[name] not in (None, False, "", [], OFF_VALUES.get(name)):
            reason = f"{name} is not supported: {FIELD_REASONS[name]}."
            raise bad_request(reason, name, ERROR_CODES.get(name, "unsupported_parameter"))


@cache
def warn_once(sentence: str) -> None:
    log.warning("%s", sentence)


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


def ignore_fields(fields: Iterable[str]) -> None:
    """Names ignored fields: in the log once per process, and in the response's header.

    Args:
        fields: paths without list indexes, e.g. `messages[].clear_at`; `path=value` if only the
            value is ignored. Characters outside printable ASCII are percent-encoded.
    """
    names: dict[str, None] = {}
    for field in fields:
        name = quote(field[:MAX_NAME_CHARS], "[]=.", errors="replace")[:MAX_NAME_CHARS]
        names[name] = None
        if len(names) == MAX_FIELDS:
            break
    if not names:
        return
    record = current_record()
    if record.strict_fields:
        name = next(iter(names))
        raise bad_request(f"{name} is not a supported field; remove it.", name, "unknown_parameter")
    record.ignored_fields = [*record.ignored_fields, *names]
    new = [name for name in names if (record.path, name) not in _logged]
    if new and len(_logged) < MAX_LOGGED_FIELDS:
        _logged.update((record.path, name) for name in new)
        log.warning("ignored fields of %s: %s", record.path, ", ".join(new))
