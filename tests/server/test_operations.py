"""Access log, request counts, model names, chat template, context length."""

import re

import httpx2
import openai
import pytest

from tests.server.running_server import RunningServer, eventually, request_bytes
from tiny_llm import LLM, SamplingParams, UserError
from tiny_llm.cli import serve

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CHAT = "/v1/chat/completions"
BODY = {"messages": QUESTION, "max_tokens": 4, "reasoning_effort": "none"}
# A chat template with an optional variable, `style`.
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if style is defined %}style: {{ style.name }}{% endif %}"
)


@pytest.fixture(scope="module")
def custom(tmp_path_factory):
    """Server with a chat template, three names, short context and access log."""
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    names = ("--served-model-name", "first", "second", "--served-model-name", "third")
    with RunningServer(
        "--log-requests", "--max-model-len", "64", "--chat-template", str(template), *names
    ) as running:
        yield running


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_access_log(custom, stream):
    response = custom.post(CHAT, {**BODY, "stream": stream})
    line = custom.wait_for(f"INFO POST {CHAT} 200 id={response.headers['x-request-id']} .*")
    fields = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)(?: |$)", line)}
    assert (fields["prompt_tokens"], fields["output_tokens"]) == (10, 4)
    assert fields["cached_tokens"] >= 0
    assert 0 <= fields["ttft"] <= fields["seconds"]
    assert "capital" not in "".join(custom.lines), "expected no prompt text in the log"
    custom.get("/health?probe=1")
    custom.wait_for(r"INFO GET /health 200 id=- seconds=\d+\.\d+$")


def test_client_disconnect_is_logged(custom):
    num_lines = len(custom.lines)
    custom.connect(request_bytes(CHAT, {**BODY, "stream": True})).close()
    assert eventually(lambda: f"POST {CHAT} " in "".join(custom.lines[num_lines:]))


def test_names_are_aliases_of_one_model(custom):
    client = custom.openai
    names = ["first", "second", "third"]
    assert [model.id for model in client.models.list().data] == names
    for name in names:
        assert client.models.retrieve(name).id == name
        assert client.chat.completions.create(**BODY, model=name).model == "first"
    with pytest.raises(openai.NotFoundError, match="serves 'first', 'second', 'third'"):
        client.chat.completions.create(**BODY, model="demo")


def test_chat_template_and_its_variables(custom):
    def prompt(**fields):
        ids = custom.post("/tokenize", {"messages": QUESTION, **fields}).json()["tokens"]
        return custom.post("/detokenize", {"tokens": ids}).json()["prompt"]

    assert prompt() == f"user: {QUESTION[0]['content']}\n"
    kwargs = {"style": {"name": "pirate"}, "enable_thinking": None}
    assert prompt(chat_template_kwargs=kwargs).endswith("style: pirate")
    body = {**BODY, "chat_template_kwargs": kwargs, "return_token_ids": True}
    ids = custom.post(CHAT, body).json()["prompt_token_ids"]
    assert custom.post("/detokenize", {"tokens": ids}).json()["prompt"].endswith("style: pirate")


def test_context_length(custom):
    assert custom.post("/tokenize", {"prompt": "a"}).json()["max_model_len"] == 64
    rejected = custom.post("/v1/completions", {"prompt": "a " * 90}).json()["error"]
    assert rejected["n_ctx"] == 64
    response = custom.post(CHAT, {**BODY, "max_tokens": 1000, "ignore_eos": True}).json()
    assert response["usage"]["total_tokens"] == 64


def test_unused_template_variables_are_ignored(server):
    kwargs = {"style": "pirate", "padding": True, "a.b": 1, "unset": None, "enable_thinking": True}
    names = ("style", "padding", "a.b")
    for path in (CHAT, "/tokenize"):
        response = server.post(path, {"messages": QUESTION, "chat_template_kwargs": kwargs})
        assert response.status_code == 200
        ignored = response.headers["x-tiny-llm-ignored-fields"].split(",")
        assert ignored == [f"chat_template_kwargs.{name}" for name in names]


def test_rejections_are_logged_with_their_message(server):
    rejected = server.post(CHAT, {**BODY, "temperature": "hot"})
    assert rejected.status_code == 400
    request_id = rejected.headers["x-request-id"]
    line = server.wait_for(f"WARNING POST {CHAT} 400 id={request_id} .*")
    assert line.endswith("error: temperature must be a number, got 'hot'.")
    server.post(CHAT, {**BODY, "model": "a\nINFO b"})
    server.wait_for(r"error: The model 'a\\nINFO b' does not exist")
    server.get("/a%0Ab")
    server.wait_for(r"WARNING GET /a\\nb 404 ")


@pytest.mark.slow
def test_contents_are_logged_only_on_request():
    with RunningServer("--log-contents") as running:
        running.post(CHAT, {**BODY, "stream": True})
        running.post("/tokenize", {"prompt": "x" * 20000})
        logged = r"INFO id=(\S+) request: {\"messages\":.*capital of France.*}$"
        request_id = running.wait_for(logged)
        running.wait_for(rf"INFO id={request_id} response: data: .*\" capital\".*data: \[DONE\]")
        running.wait_for(r"request: {\"prompt\":\"x{16000,}… \(truncated\)$")


@pytest.mark.slow
def test_requests_are_counted_by_endpoint_method_and_status(server):
    def count(endpoint, method, status):
        labels = f'endpoint="{endpoint}",method="{method}",status="{status}"'
        line = rf"^tiny_llm:http_requests_total{{{labels}}} (\S+)"
        return float((re.findall(line, server.get("/metrics").text, re.M) or [0])[0])

    cases = {
        (CHAT, "POST", 200): ("POST", CHAT, BODY),
        (CHAT, "POST", 400): ("POST", CHAT, {}),
        (CHAT, "GET", 405): ("GET", CHAT, None),
        ("/v1/models/{name:path}", "GET", 200): ("GET", "/v1/models/demo", None),
        ("other", "GET", 404): ("GET", "/unknown", None),
        ("other", "other", 404): ("PROPFIND", "/unknown", None),
    }
    before = {case: count(*case) for case in cases}
    for method, path, body in cases.values():
        httpx2.request(method, server.url + path, json=body, timeout=60)
    for case in cases:
        assert eventually(lambda case=case: count(*case) == before[case] + 1), case


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/v1/v1/chat/completions", f"use {CHAT}: end the client's base URL without /v1."),
        ("/chat/completions", f"use {CHAT}: end the client's base URL with /v1."),
        ("/messages", "use /v1/messages: end the client's base URL with /v1."),
        ("/v1/tokenize", "use /tokenize: end the client's base URL without /v1."),
        ("/v1//chat/completions", f"use {CHAT}: end the client's base URL without a slash."),
        *((path, "/docs lists") for path in ("/v1/v1", "/v1/unknown", "/v1/v1/unknown")),
    ],
)
def test_hint_for_a_wrong_path(server, path, advice):
    missing = server.post(path, BODY)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert missing.json()["error"]["message"].startswith(f"Path not found; {advice}")


@pytest.mark.slow
def test_invalid_template_file_is_rejected_at_startup(tmp_path, capfd):
    file = tmp_path / "chat.jinja"
    for content, message in (
        (b"\xff", "cannot be read: it is not UTF-8."),
        (b"a\n{% if %}", "is not valid Jinja (line 2: Expected an expression, got 'end of statem"),
    ):
        file.write_bytes(content)
        assert serve.main(["--model", "demo", "--port", "0", "--chat-template", str(file)]) == 2
        assert f"the chat template {file} {message}" in capfd.readouterr().err


def test_port_in_use(capsys, server):
    port = server.url.rpartition(":")[2]
    assert serve.main(["--model", "demo", "--port", port]) == 2
    assert "choose another --port" in capsys.readouterr().err


def test_missing_libraries_error_names_the_extra(capsys, monkeypatch):
    monkeypatch.setattr(serve, "LIBRARIES", ("fastapi", "no_such_library"))
    assert serve.main([]) == 2
    error = capsys.readouterr().err
    assert "requires no_such_library; run `pip install 'tiny-llm[serve]'`" in error


def test_context_length_of_the_engine():
    with pytest.raises(UserError, match=r"max_model_len must be at most 2048 \(.*\), got 4096\."):
        LLM("demo", max_model_len=4096)
    with pytest.raises(UserError, match="max_model_len must be at least 2, got 1"):
        LLM("demo", max_model_len=1)
    template = "{{ messages[0].content }}"
    llm = LLM("demo", kv_cache_bytes=2e7, max_model_len=8, chat_template=template)
    assert llm.tokenizer.apply_chat_template(QUESTION, tokenize=False) == QUESTION[0]["content"]
    [output] = llm.generate([1, 2, 3], SamplingParams(max_tokens=None, ignore_eos=True))
    assert len(output.token_ids) == 5
