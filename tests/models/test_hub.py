"""Model download in a subprocess, from a local hub.

The hub implements the part of Hugging Face's protocol that `huggingface_hub` needs for downloads.
"""

import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmark.make_checkpoint import qwen3_config, write_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = "someone/small-qwen3"
NO_HUB = "http://127.0.0.1:9"  # no server listens on this port
UNWANTED = ("pytorch_model.bin", "consolidated.safetensors", "mtp.safetensors")


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves a folder as repository `MODEL`; others get 401, as from the Hub."""

    folder: Path

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        api = f"/api/models/{MODEL}"
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            names = [{"rfilename": file.name} for file in self.folder.iterdir()]
            self.answer_json({"id": MODEL, "sha": COMMIT, "siblings": names, "private": False})
        elif path.startswith(f"{api}/tree/"):
            self.answer_json([self.describe(file) for file in self.folder.iterdir()])
        elif path.startswith(f"/{MODEL}/resolve/"):
            self.answer((self.folder / path.rpartition("/")[2]).read_bytes())
        elif path.startswith("/api/models/someone/gated"):
            self.answer(b"", 403, {"X-Error-Code": "GatedRepo"})
        else:
            self.answer(b"", 401, {"X-Error-Code": "RepoNotFound"})

    def describe(self, file: Path) -> dict:
        content = file.read_bytes()
        oid = hashlib.sha1(content).hexdigest()
        return {"type": "file", "path": file.name, "size": len(content), "oid": oid}

    def answer_json(self, content: object) -> None:
        self.answer(json.dumps(content).encode(), headers={"Content-Type": "application/json"})

    def answer(self, content: bytes, status: int = 200, headers: dict | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("hub")
    config = qwen3_config(128, 1, 128, 2, 1, True, head_dim=64, vocab_size=4200)
    write_checkpoint(folder, config, bits=4)
    for name in UNWANTED:
        (folder / name).write_bytes(b"not wanted")
    handler = type("OneFolderHub", (Hub,), {"folder": folder})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def run(argv: list[str], home: Path, endpoint: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HOME": str(home), "HF_ENDPOINT": endpoint}
    environment |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120)


def main(home: Path, endpoint: str, model: str) -> subprocess.CompletedProcess[str]:
    argv = ["--model", model, "--prompt", "Hello!", "--max-tokens", "2"]
    return run([sys.executable, "-m", "tiny_llm.cli.main", *argv], home, endpoint)


@pytest.mark.slow
def test_download_then_offline_load_from_cache(tmp_path, hub):
    first = main(tmp_path, hub, MODEL)
    assert first.returncode == 0, first.stderr
    assert re.search(rf"downloading {MODEL}: [\d.]+ [kM]B\n", first.stderr)
    assert "generation: " in first.stdout
    for name in UNWANTED:
        assert not list(tmp_path.rglob(name)), "expected only files needed for loading"

    again = main(tmp_path, NO_HUB, MODEL)
    assert again.returncode == 0, again.stderr
    assert "downloading" not in again.stderr


@pytest.mark.slow
def test_offline_load_from_a_cache_that_mlx_lm_filled(tmp_path, hub):
    program = f"from mlx_lm.utils import _download; _download({MODEL!r})"
    run([sys.executable, "-c", program], tmp_path, hub).check_returncode()
    offline = main(tmp_path, NO_HUB, MODEL)
    assert offline.returncode == 0, offline.stderr
    assert "downloading" not in offline.stderr


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("someone/nothing", "the Hugging Face hub has no model 'someone/nothing'"),
        ("someone/gated", "is a gated model: accept its terms"),
        (MODEL, "the Hugging Face hub cannot be reached"),
    ],
)
def test_unavailable_models(tmp_path, hub, model, message):
    result = main(tmp_path, NO_HUB if model == MODEL else hub, model)
    assert result.returncode == 2
    assert message in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
