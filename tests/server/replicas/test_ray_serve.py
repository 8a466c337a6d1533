"""Two replicas on Ray Serve: response, stream, lost replica. Not run in CI."""

import os
import signal
import subprocess
import time

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'tiny-llm[ray]'")
pytest.importorskip("fastapi", reason="the server's libraries are not installed")

import httpx2
import ray
from ray import serve

from tiny_llm.server.replicas.ray_serve import RayServeArgs, build

PORT = 8713
URL = f"http://127.0.0.1:{PORT}"
BODY = {"messages": [{"role": "user", "content": "What is RoPE?"}], "temperature": 0}


def replica_pids() -> set[int]:
    command = ["pgrep", "-f", "^ray::ServeReplica:default:replica"]
    result = subprocess.run(command, capture_output=True, check=False)
    return {int(pid) for pid in result.stdout.split()}


@pytest.fixture(scope="module")
def replicas():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"port": PORT})
    serve.run(build(RayServeArgs(model="demo", replicas=2, kv_cache_bytes=2**24)))
    yield
    serve.shutdown()
    ray.shutdown()


@pytest.mark.usefixtures("replicas")
def test_replicas_respond_and_a_lost_one_is_restarted():
    before = replica_pids()
    assert len(before) == 2
    with httpx2.Client(base_url=URL, timeout=60) as client:
        assert client.get("/ready").status_code == 200
        response = client.post("/v1/chat/completions", json={**BODY, "max_tokens": 8}).json()
        assert response["usage"]["completion_tokens"] == 8
        long = {**BODY, "max_tokens": 1500, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=long) as streamed:
            lines = streamed.iter_lines()
            assert "data: " in next(line for line in lines if line)
            for process in before:  # kills both, because either may serve the stream
                os.kill(process, signal.SIGKILL)
            rest = [line for line in lines if line]
        assert "The replica that computed this response was lost" in rest[-2]
        assert rest[-1] == "data: [DONE]"
        deadline = time.monotonic() + 120
        while len(replica_pids() - before) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        again = client.post("/v1/chat/completions", json={**BODY, "max_tokens": 8}).json()
    assert again["choices"] == response["choices"]
