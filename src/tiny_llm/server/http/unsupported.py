"""Fields that the protocols have and this server cannot honour, with the reason."""

import logging
import re
from functools import cache

log = logging.getLogger("tiny_llm.server")

TEXT_ONLY = "this model reads and writes texts only"
STATELESS = "this server keeps nothing between two requests; send the whole conversation"
OLD_NAME = "it is an old name; use structured_outputs"
NO_BEAMS = "answers are sampled, one token after the other"
CONTEXT_NOT_EDITED = "context_management is left out: what the client sends is not edited"
NO_SERVER_TOOLS = "this server runs no tools; the client runs those of `tools`"

FIELD_REASONS = {
    # Chats
    "audio": TEXT_ONLY,
    "function_call": "it is an old name; use tool_choice",
    "functions": "it is an old name; use tools",
    "moderation": "nothing is moderated here",
    "prediction": "the server guesses from the prompt if it is started with --speculative ngram",
    "web_search_options": NO_SERVER_TOOLS,
    # Names of vLLM, llama.cpp and SGLang
    "allowed_token_ids": "use structured_outputs or logit_bias",
    "bad_words": "use logit_bias",
    "chat_template": "the model's own is used",
    "documents": "write them into a message",
    "ebnf": "use structured_outputs",
    "grammar": "use structured_outputs",
    "guided_choice": OLD_NAME,
    "guided_grammar": OLD_NAME,
    "guided_json": OLD_NAME,
    "guided_regex": OLD_NAME,
    "json_schema": "use response_format or structured_outputs",
    "length_penalty": NO_BEAMS,
    "n_predict": "use max_tokens",
    "priority": "requests are served in the order in which they come",
    "regex": "use structured_outputs",
    "truncate_prompt_tokens": "prompts are not cut",
    "use_beam_search": NO_BEAMS,
    # Responses
    "access_programs": "there are none here",
    "background_options": "this server keeps no responses",
    "conversation": STATELESS,
    "image": TEXT_ONLY,
    "prompt": "this server keeps no prompts; send the text itself",
    # Messages
    "compaction": "the conversation is not edited",
    "container": NO_SERVER_TOOLS,
    "fallbacks": "this server has one model",
    "inference_geo": "the answer is computed where the server is",
    "mcp_servers": NO_SERVER_TOOLS,
}

# Fields of which one value asks for nothing, and the others for what cannot be.
VALUE_REASONS = {
    "billing_policy.bill_to": "nobody is billed here",
    "context_management.edits[].type": "the conversation is not edited",
    "tools[].allowed_callers[]": NO_SERVER_TOOLS,
    "tools[].defer_loading": "tools are not searched; the model is told of each from the start",
    "verbosity": "the model does not know it; ask for a short or a long answer in a message",
    "reasoning.summary": "there are no summaries; the thoughts themselves are told",
    "service_tier": "all requests are served alike",
    "skip_special_tokens": "a text is the text of all its tokens",
}
VALUE_REASONS["text.verbosity"] = VALUE_REASONS["verbosity"]
VALUE_REASONS["reasoning.generate_summary"] = VALUE_REASONS["reasoning.summary"]


@cache
def warn_once(sentence: str) -> None:
    """Writes a warning to the log the first time: agents send the same fields with each request."""
    log.warning("%s", sentence)


def unsupported_value_message(field: str, given: object, allowed: object) -> str | None:
    """Why a field cannot have a value; None if there is nothing to say beyond what is allowed.

    Args:
        field: its place in the body.
        given: the value.
        allowed: the others, in words.
    """
    reason = VALUE_REASONS.get(re.sub(r"\[\d+\]", "[]", field))
    if reason is None:
        return None
    return f"{field} may be {allowed}, and not {str(given)[:60]!r}: {reason}."


def unsupported_field_message(field: str) -> str | None:
    """Why a field cannot be honoured; None if the server does not know it."""
    reason = FIELD_REASONS.get(field)
    return None if reason is None else f"{field} is not supported: {reason}."
