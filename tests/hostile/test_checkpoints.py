"""Malformed checkpoints: one-sentence errors; no code runs, no file outside is read."""

import contextlib
import io
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from tests.hostile import corruptions
from tests.hostile.checkpoint_cases import CASES, CODE, Case
from tests.hostile.corruptions import config, settings
from tiny_llm import LLM, ModelError, SamplingParams, load, load_weights
from tiny_llm.server.settings import default_sampling_params

CHAT = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def valid_checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("valid")
    corruptions.make_valid_checkpoint(folder)
    return folder


@pytest.fixture
def folder(valid_checkpoint, tmp_path) -> Path:
    """Copy of the valid checkpoint for the test to corrupt."""
    shutil.copytree(valid_checkpoint, tmp_path / "folder")
    return tmp_path / "folder"


# Wording of Python's built-in exceptions, which means nothing to users.
PYTHON_WORDING = re.compile(
    r"object is not|object has no|not subscriptable|positional|local variable|NoneType|unhashable"
    r"|index out of range|KeyError|TypeError|Errno|invalid literal|could not convert|codec can't"
    r"|expected str\b|argument must|recursion|has no len|Traceback|<class|<built-in|\bassert"
)


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, id=f"{case.name}, {kind}")
        for case in CASES
        for kind in (("load_weights", "load") if case.use == "load" else (case.use,))
    ],
)
def test_malformed_checkpoint(case: Case, kind: str, folder: Path, capfd):
    corruptions.apply(case.corruption, folder)
    with pytest.raises(ModelError) as caught:
        use(kind, folder)
    sentence = str(caught.value)
    if kind != "load" or "cannot be loaded" not in sentence:  # mlx_lm names other details
        assert not [word for word in case.words if word not in sentence], sentence
    assert sentence.endswith((".", "?")), sentence
    assert "\n" not in sentence
    assert len(sentence) < 800
    assert not PYTHON_WORDING.search(sentence), sentence
    assert capfd.readouterr().err == ""
    assert not list(folder.parent.rglob(corruptions.MARKER)), "expected no code to run"


def use(kind: str, folder: Path) -> None:
    console = Console(file=io.StringIO())
    if kind == "load":
        load(str(folder), console)
        return
    if kind == "serve":
        default_sampling_params(folder, "auto")
        return
    model = load_weights(str(folder), console, "dummy" if kind == "dummy" else "auto")
    if kind == "chat":
        llm = LLM(model, kv_cache_bytes=2**20)
        [output] = llm.generate([CHAT], SamplingParams(max_tokens=2, temperature=0.0))
        if output.error is not None:
            raise ModelError(output.error)


@pytest.mark.parametrize("kind", ["load_weights", "load"])
def test_code_of_a_checkpoint_is_not_run(folder, kind):
    code = {"AutoModelForCausalLM": "evil.Model", "AutoTokenizer": ["evil.T", None]}
    named = settings(auto_map=code, chat_template_type="evil", tool_parser_type="..evil")
    corruptions.apply(CODE | named, folder)
    use(kind, folder)
    pipelines = {"a": {"impl": "evil.P"}}
    trusted = config(auto_map=code, trust_remote_code=True, custom_pipelines=pipelines)
    corruptions.apply(trusted, folder)
    with contextlib.suppress(ModelError):
        use(kind, folder)
    assert not (folder / corruptions.MARKER).exists()
