"""Malformed checkpoints: one-sentence errors; no code runs, no file outside is read."""

import contextlib
import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from tests.hostile import corruptions
from tests.hostile.case import Case
from tests.hostile.checkpoint_cases import CODE, FOLDERS
from tests.hostile.corruptions import config, settings
from tests.hostile.runner import message_problems
from tiny_llm import LLM, ModelError, SamplingParams, load, load_weights
from tiny_llm.server.protocol.request_fields import default_sampling_params

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


def test_case_names_are_unique():
    assert len({case.name for case in FOLDERS}) == len(FOLDERS)


@pytest.mark.parametrize("case", FOLDERS, ids=lambda case: case.name)
def test_malformed_checkpoint(case: Case, folder: Path, capfd):
    case.corrupt(folder)
    with pytest.raises(ModelError) as caught:
        use(case.use, folder)
    assert message_problems(case.words, str(caught.value)) == []
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
    settings(auto_map=code, chat_template_type="evil", tool_parser_type="..evil")(folder)
    CODE(folder)
    use(kind, folder)
    config(auto_map=code, trust_remote_code=True, custom_pipelines={"a": {"impl": "evil.P"}})(
        folder
    )
    with contextlib.suppress(ModelError):
        use(kind, folder)
    assert not (folder / corruptions.MARKER).exists()
