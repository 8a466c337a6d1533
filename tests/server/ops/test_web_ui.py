"""Web UI without a browser: static files, authentication, recordings."""

import json
import re

import httpx2
import pytest

from tests.server.running_server import RunningServer
from tiny_llm.server import operations

FILES = sorted((operations.WEB_ROOT / "page").rglob("*.*"))
PROJECT_FILES = [file for file in operations.WEB_ROOT.rglob("*.*") if "vendor" not in file.parts]


def test_page_and_its_imports_are_served_with_csp(server):
    pending, seen = ["/", "/docs"], set()
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        response = server.get(path)
        assert response.status_code == 200, path
        assert response.headers["content-security-policy"] == operations.CONTENT_SECURITY_POLICY
        folder = path.rpartition("/")[0]
        is_page = path in ("/", "/docs")
        for name in re.findall(r'(?:src|href)="(page/[^"]+)"', response.text) * is_page:
            pending.append(f"/{name}")
        for name in re.findall(r'^import .*from "\./([^"]+)";$', response.text, re.M):
            pending.append(f"{folder}/{name}")
    served = {f"/page/{file.relative_to(operations.WEB_ROOT / 'page')}" for file in FILES}
    assert seen - {"/", "/docs"} <= served
    unused = {name for name in served - seen if "LICENSE" not in name and "README" not in name}
    assert not unused


@pytest.mark.parametrize("file", PROJECT_FILES, ids=lambda file: file.name)
def test_files_do_not_reference_other_hosts(file):
    addresses = re.findall(r"https?://[^\s\"'`]+", file.read_text(encoding="utf-8"))
    assert [address for address in addresses if not address.startswith("http://www.w3.org/")] == []


def test_other_paths_are_not_served(server):
    for path in ("/page/", "/page/..%2Fapp.py", "/page/%2e%2e/%2e%2e/app.py", "/page/vendor"):
        assert server.get(path).status_code == 404, path
    response = httpx2.post(server.url + "/page/app.js")
    assert response.status_code == 405


@pytest.mark.slow
def test_page_needs_no_api_key_but_its_endpoints_do(tmp_path):
    record = ("--record", str(tmp_path / "run.json"))
    with RunningServer("--api-key", "secret", *record) as running:
        paths = ("/", "/page/app.js", "/engine/events", "/engine/state")
        assert [running.get(path).status_code for path in paths] == [200, 200, 401, 401]
        headers = {"Authorization": "Bearer secret"}
        body = {"prompt": "Hello", "max_tokens": 3, "ignore_eos": True}
        assert running.post("/v1/completions", body, headers=headers).status_code == 200
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
    actual = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert (actual["schema"], actual["version"]) == ("tiny-llm-run", 1)
    assert actual["engine"]["page_size"] > 0
    names = {event["event"] for event in actual["events"]}
    assert names >= {"snapshot", "request_added", "tokens_added", "request_ended"}
    times = [event["time"] for event in actual["events"]]
    assert times[0] == 0.0
    assert max(times) < 120
