"""Fields that the protocols have and this server cannot honour, with the reason."""

TEXT_ALONE = "this model reads and writes texts only"
STATELESS = "this server keeps nothing between two requests; send the whole conversation"
NO_SERVER_TOOLS = "this server runs no tools; the client runs those of `tools`"

REASONS = {
    # Chats
    "audio": TEXT_ALONE,
    "function_call": "it is an old name; use tool_choice",
    "functions": "it is an old name; use tools",
    "moderation": "nothing is moderated here",
    "prediction": "the server guesses from the prompt if it is started with --speculative ngram",
    "web_search_options": NO_SERVER_TOOLS,
    # Responses
    "access_programs": "there are none here",
    "background_options": "this server keeps no responses",
    "conversation": STATELESS,
    "image": TEXT_ALONE,
    "prompt": "this server keeps no prompts; send the text itself",
    # Messages
    "compaction": "the conversation is not edited",
    "container": NO_SERVER_TOOLS,
    "fallbacks": "this server has one model",
    "inference_geo": "the answer is computed where the server is",
    "mcp_servers": NO_SERVER_TOOLS,
}


def reason_against(field: str) -> str | None:
    """Why a field cannot be honoured; None if the server does not know it."""
    reason = REASONS.get(field)
    return None if reason is None else f"{field} is not supported: {reason}."
