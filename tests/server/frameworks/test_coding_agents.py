"""Codex and Claude Code on a scripted model: ten turns each, in two runs.

Skipped unless they are installed with `npm install --prefix /tmp/fwjs @openai/codex
@anthropic-ai/claude-code` and TINY_LLM_FRAMEWORKS_NODE=/tmp/fwjs is set. The agents can reach only
the server.
"""

import json
import os
import re
import subprocess
from base64 import b64decode
from itertools import pairwise
from pathlib import Path

import pytest

from tests.server.frameworks.test_loops import NODE_PREFIX
from tests.server.running_server import RunningServer
from tests.server.scripted_model import tool_call, write_checkpoint

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
    "codex": lambda command: tool_call("exec_command", cmd=command),
    "claude": lambda command: tool_call("Bash", command=command, description="Writes a line"),
}
# Tool calls on media files. Codex's result contains an image; Claude Code sends the PDF file in a
# separate block beside the result.
VIEWS = {
    "codex": lambda folder: tool_call("view_image", path=f"{folder}/dot.png"),
    "claude": lambda folder: tool_call("Read", file_path=f"{folder}/empty.pdf"),
}
PNG = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)
PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"


def scripted_outputs(agent: str, folder: Path) -> list[str]:
    """Ten outputs: single, parallel and text-prefixed calls; runs end with text."""
    shell = SHELLS[agent]
    calls = [shell(f"echo {turn} >> turns") for turn in range(8)]
    calls[1] = f"I write a line.\n{calls[1]}"
    calls[2] = f"{shell('echo before')}\n{calls[2]}"
    calls[5] = f"{VIEWS[agent](folder)}\n{calls[5]}"
    return [*calls[:4], "The first half is done.", *calls[4:], "All is done."]


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
@pytest.mark.parametrize("agent", RUNS)
def test_ten_turns(agent, tmp_path):
    program = NODE_PREFIX / "node_modules" / ".bin" / agent
    if not program.exists():
        pytest.skip(f"TINY_LLM_FRAMEWORKS_NODE does not name an npm prefix with {agent}")
    work = tmp_path / "work"
    work.mkdir()
    (work / "dot.png").write_bytes(PNG)
    (work / "empty.pdf").write_bytes(PDF)
    script = [['"type": "function"', scripted_outputs(agent, work)]]
    (tmp_path / "script.json").write_text(json.dumps(script))
    checkpoint = write_checkpoint(tmp_path / "demo", 65_536)
    flags = ("--model", str(checkpoint), "--log-requests", "--kv-cache-bytes", str(10**9))
    server = RunningServer(*flags, script=tmp_path / "script.json")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(CODEX_CONFIG.format(url=server.url))
    for arguments, end in zip(RUNS[agent], ("first half is", "All is"), strict=True):
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
        assert run.returncode == 0, run.stdout + run.stderr
        assert end in run.stdout
    assert server.stop() == 0
    assert (work / "turns").read_text().split() == list("01234567")

    log = "".join(server.lines)
    requests = re.findall(r" (?:POST|GET|HEAD) \S+ (\d+) .*", log)
    assert set(requests) == {"200"}, log
    counts = [
        tuple(map(int, match))
        for match in re.findall(r"prompt_tokens=(\d+) cached_tokens=(\d+) output_tokens=(\d+)", log)
    ]
    assert len(counts) == 10
    assert f"each {'image' if agent == 'codex' else 'document'} in a tool result is replaced" in log
    for (prompt, _, output), (_, cached, _) in pairwise(counts):
        assert cached >= 0.95 * (prompt + output), counts
    print(agent, counts)
