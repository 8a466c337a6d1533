"""LoRA adapters, which requests select by model name."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from tests.models.lora_adapters.support import write_adapters
from tests.server.protocols import PROTOCOLS
from tests.server.running_server import RunningServer
from tiny_llm import LLM, SamplingParams
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
    with RunningServer(
        "--served-model-name", "base", "alias", "--lora-modules", *modules
    ) as running:
        yield running


@pytest.mark.slow
def test_concurrent_requests_use_their_own_adapters(lora_server, folders):
    """Concurrent requests get the same texts as separate `LLM.generate` calls."""
    llm = LLM("demo", lora_modules=folders)
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    names = ["base", "sql", "french", "alias", "sql", "french"]

    def complete(name: str):
        return lora_server.openai.completions.create(model=name, prompt=PROMPT, **OPTIONS)

    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(complete, names))
    for name, answer in zip(names, answers, strict=True):
        lora = name if name in folders else None
        [expected] = llm.generate([PROMPT], params, lora=lora)
        assert answer.choices[0].text == expected.text, name
        assert answer.model == (lora or "base")
    assert len({answer.choices[0].text for answer in answers}) == 3


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_every_protocol(lora_server, protocol):
    texts = set()
    for model, stream in (("base", False), ("sql", False), ("sql", True)):
        fields = {"model": model, "temperature": 0, "max_tokens": 8, "stream": stream}
        answer = protocol.ask(lora_server, "What is RoPE?", **fields)
        assert answer.raw.model == model
        texts.add((model, answer.text))
    assert len(texts) == len({text for _, text in texts}) == 2


def test_models_list_adapters_with_their_parent(lora_server):
    client = lora_server.openai
    models = {model.id: model for model in client.models.list().data}
    assert list(models) == ["base", "alias", "sql", "french"]
    assert [models[name].parent for name in models] == [None, None, "base", "base"]
    assert client.models.retrieve("sql").parent == "base"
    with pytest.raises(openai.NotFoundError, match="serves 'base', 'alias', 'sql', 'french'"):
        client.completions.create(model="x", prompt="a")
