"""Contract of the invalid flags of `serve`: flags, sentence; exit status 2."""

import pytest

from tiny_llm.cli import serve

ONE, TWO = ("--model", "demo"), ("--model", "demo", "--model", "demo-draft")
SENTENCES = {
    (): [
        (["--host", "0.0.0.0"], "exposes the server to other machines without an API key"),
        (["--port", "70000"], "--port: must be between 0 and 65535, got 70000"),
        (["--watchdog", "0"], "--watchdog: must be at least 0.001, got 0"),
        (["--max-queue", "-1"], "--max-queue: must be at least 0, got -1"),
        (["--generation-config", "mine"], "--generation-config: invalid choice: 'mine'"),
        (["--block-size", "0"], "--block-size: must be at least 1, got 0"),
        (["--model", "nothing"], "unknown model 'nothing'"),
        (["--chat-template", "/nowhere"], "the chat template /nowhere cannot be read"),
    ],
    ONE: [
        (["--lora-modules", "sql"], "argument --lora-modules: must be NAME=DIR, got sql"),
        (["--lora-modules", "a=x", "a=y"], "--lora-modules: 'a' is already the name of the model"),
        (["--lora-modules", "demo=x"], "--lora-modules: 'demo' is already the name of the model"),
        (
            ["--lora-modules", "a=x", "--adapter-path", "y"],
            "adapter_path and lora_modules cannot be combined",
        ),
    ],
    TWO: [
        (["--max-memory", "9000000"], "the model 'demo' needs"),
        (["--max-memory", "1e18"], "must be at most the machine's memory"),
        (["--draft-model", "demo-draft"], "--draft-model supports a single --model, got 2"),
        (["--task", "embed"], "pass the task as --model PATH=TASK"),
        (["--record", "x.json"], "--record supports a single --model"),
        (["--tensor-parallel-size", "2"], "--tensor-parallel-size supports a single --model"),
        (["--served-model-name", "x"], "--served-model-name supports a single --model"),
        (["--model", "demo=pin"], "two models have the API name 'demo'"),
        (["--model", "demo=embedd"], "invalid options 'embedd'; use at most one task"),
        (["--model", "demo=embed,score"], "use at most one task"),
        (["--model", "demo=blok-size=1"], "unknown option 'blok_size'; did you mean block_size?"),
        (["--model", "demo=block-size=0"], "block_size: must be at least 1, got 0."),
        (["--model", "demo=lora-modules=a"], "use the flag --lora-modules instead"),
    ],
}


@pytest.mark.parametrize(
    ("models", "flags", "sentence"),
    [(models, *row) for models, rows in SENTENCES.items() for row in rows],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_invalid_flags(capfd, monkeypatch, models, flags, sentence):
    monkeypatch.delenv("TINY_LLM_API_KEY", raising=False)
    assert serve.main([*models, *flags]) == 2
    assert sentence in capfd.readouterr().err


def test_port_in_use(capsys, server):
    port = server.url.rpartition(":")[2]
    assert serve.main([*ONE, "--port", port]) == 2
    assert "choose another --port" in capsys.readouterr().err


def test_pinned_models_must_fit_together(capsys):
    models = ["--model", "demo=pin", "--model", "demo-draft"]
    assert serve.main([*models, "--kv-cache-bytes", "1e8", "--max-memory", "15e7"]) == 2
    error = capsys.readouterr().err
    assert "'demo-draft' needs" in error
    assert "for other pinned models" in error


def test_missing_libraries_error_names_the_extra(capsys, monkeypatch):
    monkeypatch.setattr(serve, "LIBRARIES", ("fastapi", "no_such_library"))
    assert serve.main([]) == 2
    error = capsys.readouterr().err
    assert "requires no_such_library; run `pip install 'tiny-llm[serve]'`" in error
