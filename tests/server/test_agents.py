"""Default requests of Codex 0.169.0 and Claude Code 2.1.197, abridged."""

import json

import pytest

QUESTION = "What is the capital of France?"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CACHED = {"cache_control": {"type": "ephemeral"}}

WEATHER = {"name": "weather", "description": "The weather.", "strict": False, "parameters": SCHEMA}
CODEX = {
    "model": "demo",
    "input": [
        {
            "type": "message",
            "id": "msg_1",
            "role": role,
            "content": [{"type": "input_text", "text": text}],
        }
        for role, text in (("developer", "Be brief."), ("user", "Here: /home."), ("user", QUESTION))
    ],
    "tools": [
        {"type": "function", **WEATHER},
        {"type": "namespace", "name": "multi", "description": "Several.", "tools": []},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a20d66",
    "client_metadata": {"x-codex-installation-id": "fba48543"},
}
CLAUDE_CODE = {
    "model": "demo",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "The date is known."},
                {"type": "text", "text": QUESTION, **CACHED},
            ],
        },
        {"role": "system", "content": "There are no other agents."},
    ],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.73f;"},
        {"type": "text", "text": "Be brief.", **CACHED},
    ],
    "tools": [{"name": "weather", "description": "The weather.", "input_schema": SCHEMA}],
    "metadata": {"user_id": json.dumps({"device_id": "0e0e23f0", "account_uuid": ""})},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}
SHORT = {
    "/v1/responses": {**CODEX, "max_output_tokens": 8},
    "/v1/messages?beta=true": {**CLAUDE_CODE, "max_tokens": 8},
}


@pytest.mark.parametrize("path", SHORT)
def test_agent_request_gets_a_complete_stream(server, path):
    response = server.post(path, SHORT[path])
    assert response.status_code == 200, response.text
    kinds = [line[7:] for line in response.text.splitlines() if line.startswith("event: ")]
    assert kinds[-1] in ("response.incomplete", "response.completed", "message_stop")
    assert "error" not in kinds
