"""LoRA adapters, which requests select by model name."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anthropic
import openai
import pytest

from tests.models.lora.support import write_adapters
from tests.server.running_server import RunningServer
from tiny_llm import LLM, SamplingParams
from tiny_llm.cli import serve
from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.checkpoint.layout import read_model_config

PROMPT = "The KV cache keeps keys and values. " * 3
OPTIONS = {"max_tokens": 8, "temperature": 0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    folder, config = tmp_path_factory.mktemp("adapters"), read_model_config(TARGET_PATH)
    return write_adapters(folder, config, {"sql": 3, "french": 8}, 0.6)


@pytest.fixture(scope="module")
def lora_server(folders) -> Iterator[RunningServer]:
    modules = [f"{name}={folder}" for name, folder in folders.items()]
    running = RunningServer("--served-model-name", "base", "alias", "--lora-modules", *modules)
    yield running
    assert running.stop() == 0, "".join(running.lines[-60:])


@pytest.fixture(scope="module")
def lora_client(lora_server):
    return openai.OpenAI(base_url=lora_server.url + "/v1", api_key="none", max_retries=0)


@pytest.mark.slow
def test_concurrent_requests_use_their_own_adapters(lora_client, folders):
    """Concurrent requests get the same texts as separate `LLM.generate` calls."""
    llm = LLM("demo", lora_modules=folders)
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    names = ["base", "sql", "french", "alias", "sql", "french"]

    def complete(name: str):
        return lora_client.completions.create(model=name, prompt=PROMPT, **OPTIONS)

    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(complete, names))
    for name, answer in zip(names, answers, strict=True):
        lora = name if name in folders else None
        [expected] = llm.generate([PROMPT], params, lora=lora)
        assert answer.choices[0].text == expected.text, name
        assert answer.model == (lora or "base")
    assert len({answer.choices[0].text for answer in answers}) == 3


def test_every_protocol(lora_server, lora_client):
    messages = [{"role": "user", "content": "What is RoPE?"}]
    extra = {"ignore_eos": True, "chat_template_kwargs": {"enable_thinking": False}}
    options = {**OPTIONS, "messages": messages, "extra_body": extra}
    chats = {
        name: lora_client.chat.completions.create(model=name, **options) for name in ("base", "sql")
    }
    texts = {name: chat.choices[0].message.content for name, chat in chats.items()}
    assert texts["base"] != texts["sql"]
    assert chats["sql"].model == "sql"
    chunks = list(lora_client.chat.completions.create(model="sql", stream=True, **options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == texts["sql"]
    assert {chunk.model for chunk in chunks} == {"sql"}
    response = lora_client.responses.create(
        model="sql", input="What is RoPE?", max_output_tokens=8, temperature=0
    )
    assert response.model == "sql"
    client = anthropic.Anthropic(base_url=lora_server.url, api_key="none", max_retries=0)
    message = client.messages.create(
        model="french", max_tokens=8, messages=messages, extra_body={"temperature": 0}
    )
    assert message.model == "french"


def test_models_list_adapters_with_their_parent(lora_client):
    models = {model.id: model for model in lora_client.models.list().data}
    assert list(models) == ["base", "alias", "sql", "french"]
    assert [models[name].parent for name in models] == [None, None, "base", "base"]
    assert lora_client.models.retrieve("sql").parent == "base"


def test_unknown_names_are_404(lora_client):
    with pytest.raises(openai.NotFoundError, match="serves 'base', 'alias', 'sql', 'french'"):
        lora_client.completions.create(model="x", prompt="a")


@pytest.mark.slow
def test_adapter_path_applies_to_the_models_name(folders):
    [expected] = LLM("demo", adapter_path=folders["sql"]).generate(
        [PROMPT], SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    )
    running = RunningServer("--adapter-path", str(folders["sql"]))
    client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
    answer = client.completions.create(model="demo", prompt=PROMPT, **OPTIONS)
    assert answer.choices[0].text == expected.text
    assert running.stop() == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lora-modules", "sql"], "argument --lora-modules: must be NAME=DIR, got sql"),
        (["--lora-modules", "a=x", "a=y"], "--lora-modules: 'a' is already the name of the model"),
        (["--lora-modules", "demo=x"], "--lora-modules: 'demo' is already the name of the model"),
        (
            ["--lora-modules", "a=x", "--adapter-path", "y"],
            "adapter_path and lora_modules cannot be combined",
        ),
    ],
)
def test_invalid_flags(capfd, flags, message):
    assert serve.main(["--model", "demo", "--port", "0", *flags]) in (1, 2)
    assert message in capfd.readouterr().err
