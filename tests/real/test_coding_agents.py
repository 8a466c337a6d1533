"""Codex and Claude Code on a scripted model, with official templates: ten turns each, in two runs.

Skipped unless they are installed (0.8 GB) in the cache of official artifacts, folder `agents`:

    npm install --prefix ~/.cache/tiny-llm/real/agents @openai/codex @anthropic-ai/claude-code

The agents can reach only the server.
"""

import json
import os
import re
import subprocess
from base64 import b64decode
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.server.running_server import RunningServer
from tests.server.scripted_model import tool_call, write_checkpoint
from tiny_llm.engine.tool_calls.registry import AUTO, find_format
from tools.real_artifacts import cache_root

CODEX_CONFIG = """
model = "demo"
model_provider = "tiny-llm"

[model_providers.tiny-llm]
name = "tiny-llm"
base_url = "{url}/v1"
wire_api = "responses"
"""
# Arguments of two runs per agent; the second run resumes the conversation of the first.
CODEX = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
CLAUDE_CODE = ["--allowedTools", "Bash", "Read", "-p"]
RUNS = {
    "codex": ([*CODEX, "Go."], [*CODEX, "resume", "--last", "Go on."]),
    "claude": ([*CLAUDE_CODE, "Go."], [*CLAUDE_CODE, "Go on.", "--continue"]),
}
SHELLS = {
    "codex": lambda command: ("exec_command", {"cmd": command}),
    "claude": lambda command: ("Bash", {"command": command, "description": "Writes a line"}),
}
TOOL_SEARCH = ("ToolSearch", {"query": "select:WebFetch", "max_results": 5})
# Tool calls on media files. Codex's result contains an image; Claude Code sends the PDF file in a
# separate block beside the result.
VIEWS = {
    "codex": lambda folder: ("view_image", {"path": f"{folder}/dot.png"}),
    "claude": lambda folder: ("Read", {"file_path": f"{folder}/empty.pdf"}),
}
# Official templates, with the reasoning that starts each output.
TEMPLATES = {
    "demo": "",
    "Qwen3.5-4B": "I plan.\n</think>\n\n",  # the prompt opens the reasoning
    "Qwen3-Coder": "",
    "Qwen-Qwen3-0.6B": "<think>\nI plan.\n</think>\n\n",
    "meta-llama-Llama-3.1-8B-Instruct": "",
    "Mistral-Small-3.2-24B-Instruct-2506": "",
    "unsloth-mistral-Devstral-Small-2507": "",
    "google-gemma-4-31B-it": "<|channel>thought\nI plan.\n<channel|>",
    "openai-gpt-oss-120b": "<|channel|>analysis<|message|>I plan.<|end|><|start|>assistant",
}
# Templates that place the tools before the last user message, where no prefix can be cached.
TOOLS_BEFORE_LAST_USER = ("Mistral-Small-3.2-24B-Instruct-2506",)
ENDS = ("The first half is done.", "All is done.")
PNG = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"


def call_text(format_name: str, name: str, arguments: dict[str, Any]) -> str:
    match format_name:
        case "qwen3_coder":
            parameters = "".join(
                f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
            )
            return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"
        case "llama3_json":
            return json.dumps({"name": name, "parameters": arguments})
        case "mistral":
            return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}"
        case "gemma4":
            values = {
                k: f'<|"|>{v}<|"|>' if isinstance(v, str) else v for k, v in arguments.items()
            }
            text = ",".join(f"{key}:{values[key]}" for key in sorted(values))
            return f"<|tool_call>call:{name}{{{text}}}<tool_call|>"
        case "openai":
            header = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
            return f"{header}{json.dumps(arguments)}<|call|>"
    return tool_call(name, **arguments)


def scripted_outputs(agent: str, format_name: str, folder: Path) -> list[str]:
    """Ten outputs: single, parallel and text-prefixed calls; runs end with text."""

    def shell(command: str) -> str:
        return call_text(format_name, *SHELLS[agent](command))

    calls = [shell(f"echo {turn} >> turns") for turn in range(8)]
    view = call_text(format_name, *VIEWS[agent](folder))
    if format_name in ("llama3_json", "openai"):  # only single calls without text
        start = "<|channel|>final<|message|>" if format_name == "openai" else ""
        return [*calls[:4], f"{start}{ENDS[0]}", *calls[4:7], view, f"{start}{ENDS[1]}"]
    calls[1] = f"I write a line.\n{calls[1]}"
    calls[2] = f"{shell('echo before')}\n{calls[2]}"
    if agent == "claude":  # a deferred tool, whose definition the client sends as a reference
        calls[3] = f"{call_text(format_name, *TOOL_SEARCH)}\n{calls[3]}"
    calls[5] = f"{view}\n{calls[5]}"
    return [*calls[:4], ENDS[0], *calls[4:], ENDS[1]]


def environment(folder: Path, url: str) -> dict[str, str]:
    """Environment that provides no account and makes only `url` reachable."""
    unreachable_proxy = {
        f"{scheme}_PROXY": "http://127.0.0.1:9" for scheme in ("HTTP", "HTTPS", "ALL")
    }
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        **unreachable_proxy,
        "NO_PROXY": "127.0.0.1",
        "CODEX_HOME": str(folder),
        "CLAUDE_CONFIG_DIR": str(folder),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "demo",
        "ANTHROPIC_SMALL_FAST_MODEL": "demo",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("agent", RUNS)
def test_ten_turns(agent, template, tmp_path, artifact):
    program = cache_root() / "agents" / "node_modules" / ".bin" / agent
    if not program.exists():
        pytest.skip(f"{agent} is not in the cache; see the module docstring")
    work = tmp_path / "work"
    work.mkdir()
    (work / "dot.png").write_bytes(PNG)
    (work / "empty.pdf").write_bytes(PDF)
    checkpoint = write_checkpoint(tmp_path / "demo", 65_536)
    flags = ["--model", str(checkpoint), "--log-requests", "--kv-cache-bytes", str(10**9)]
    format_name = find_format(AUTO, None).name
    if template != "demo":
        file = artifact("chat-templates") / f"{template}.jinja"
        flags += ["--chat-template", str(file)]
        format_name = find_format(AUTO, file.read_text()).name
    outputs = scripted_outputs(agent, format_name, work)
    # Each output contains one of these texts, which later prompts contain, too.
    keys = [re.search(r"echo \d >> turns|dot.png|empty.pdf|$", output)[0] for output in outputs]
    keys = [key or output for key, output in zip(keys, outputs, strict=True)]
    script = [["", [TEMPLATES[template] + output for output in outputs], keys]]
    (tmp_path / "script.json").write_text(json.dumps(script))
    server = RunningServer(*flags, script=tmp_path / "script.json")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(CODEX_CONFIG.format(url=server.url))
    for arguments, end in zip(RUNS[agent], ENDS, strict=True):
        run = subprocess.run(
            [program, *arguments],
            cwd=work,
            env=environment(tmp_path / "home", server.url),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert run.returncode == 0, run.stdout + run.stderr + "".join(server.lines)
        assert end in run.stdout
    assert server.stop() == 0
    turns = "0123456" if format_name in ("llama3_json", "openai") else "01234567"
    assert (work / "turns").read_text().split() == list(turns)

    log = "".join(server.lines)
    assert set(re.findall(r" (?:POST|GET|HEAD) \S+ (\d+) .*", log)) == {"200"}, log
    counts = [
        tuple(map(int, match))
        for match in re.findall(r"prompt_tokens=(\d+) cached_tokens=(\d+) output_tokens=(\d+)", log)
    ]
    assert len(counts) == 10
    assert f"each {'image' if agent == 'codex' else 'document'} in a tool result is replaced" in log
    print(agent, template, counts)
    for number, ((prompt, _, output), (_, cached, _)) in enumerate(pairwise(counts), 2):
        is_second_run = number == 6
        if not (is_second_run and template in TOOLS_BEFORE_LAST_USER):
            assert cached >= 0.95 * (prompt + output), counts
