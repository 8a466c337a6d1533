"""Request fields and content that are not supported, with reasons."""

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
