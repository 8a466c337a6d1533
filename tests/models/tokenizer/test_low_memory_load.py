"""Loading tokenizer.json in two parts, compared with `tokenizers`."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers

from tiny_llm import demo
from tiny_llm.models.tokenizer import low_memory_load
from tiny_llm.models.tokenizer.low_memory_load import load_tokenizer_json

FILE = demo.TARGET_PATH / "tokenizer.json"
TEXT = "RoPE is <|im_end|> naïve 数学 <think>"


def load(file):
    return load_tokenizer_json(file, json.loads(file.read_bytes()))


@pytest.fixture
def write_tokenizer(tmp_path):
    """Returns a function that writes a modified copy of the demo tokenizer.json."""

    def write(change):
        content = json.loads(FILE.read_bytes())
        change(content)
        file = tmp_path / "tokenizer.json"
        file.write_text(json.dumps(content))
        return file

    return write


@pytest.fixture
def library_reads_parts_only(monkeypatch):
    """Makes the `tokenizers` library unable to load a complete file."""
    parts_only = SimpleNamespace(from_str=tokenizers.Tokenizer.from_str)
    library = SimpleNamespace(Tokenizer=parts_only, models=tokenizers.models)
    monkeypatch.setattr(low_memory_load, "tokenizers", library)


def unchanged(content):
    pass


def merges_as_strings(content):
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]


def non_contiguous_ids(content):
    """Leaves a gap between the vocabulary's ids and those of the added tokens."""
    vocab = content["model"]["vocab"]
    vocab.update({f"<unused_{i}>": i for i in range(len(vocab) + 5, len(vocab) + 50)})


def added_tokens_in_the_vocabulary(content):
    vocab = content["model"]["vocab"]
    vocab.update({token["content"]: token["id"] for token in content["added_tokens"][1:3]})


def model_settings(content):
    content["model"] |= {"unk_token": "!", "fuse_unk": True, "ignore_merges": True, "dropout": 0.0}


def duplicate_added_token(content):
    content["added_tokens"].append({**content["added_tokens"][0], "id": 9999})


@pytest.mark.parametrize(
    "change",
    [
        unchanged,
        merges_as_strings,
        non_contiguous_ids,
        added_tokens_in_the_vocabulary,
        model_settings,
        duplicate_added_token,
    ],
)
def test_tokenizer_equals_library(write_tokenizer, change, request):
    file = write_tokenizer(change)
    expected = tokenizers.Tokenizer.from_file(str(file))
    request.getfixturevalue("library_reads_parts_only")
    actual = load(file)
    assert actual.to_str() == expected.to_str()
    assert actual.get_vocab(with_added_tokens=True) == expected.get_vocab(with_added_tokens=True)
    assert actual.get_vocab_size() == expected.get_vocab_size()
    assert actual.encode(TEXT).ids == expected.encode(TEXT).ids
    assert actual.decode(actual.encode(TEXT).ids) == expected.decode(expected.encode(TEXT).ids)


def test_other_model_types_fall_back_to_the_library(write_tokenizer):
    def words(content):
        content["model"] = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}

    file = write_tokenizer(words)
    assert load(file).to_str() == tokenizers.Tokenizer.from_file(str(file)).to_str()


def merge_of_unknown_tokens(content):
    content["model"]["merges"].append(["no", "token of it"])


def invalid_vocabulary(content):
    content["model"]["vocab"]["a"] = "b"


def no_added_tokens(content):
    content["added_tokens"] = 5


@pytest.mark.parametrize("change", [merge_of_unknown_tokens, invalid_vocabulary, no_added_tokens])
def test_malformed_file_raises_the_library_error(write_tokenizer, change):
    file = write_tokenizer(change)
    with pytest.raises(Exception) as expected:  # noqa: PT011  (the library raises a plain Exception)
        tokenizers.Tokenizer.from_file(str(file))
    with pytest.raises(Exception) as actual:  # noqa: PT011
        load(file)
    assert str(actual.value) == str(expected.value)


MEASURE = """
import json
import sys
from pathlib import Path

import tokenizers

from tiny_llm.models.tokenizer.low_memory_load import load_tokenizer_json
from tiny_llm.models.memory import trim_heap

def kilobytes():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

def load(file):
    return load_tokenizer_json(file, json.loads(file.read_bytes()))

file, way = sys.argv[1:]
before = kilobytes()
kept = load(Path(file)) if way == "ours" else tokenizers.Tokenizer.from_file(file)
trim_heap()
print(kilobytes() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux memory statistics"
)
def test_vocabulary_is_compact_in_memory(write_tokenizer):
    def many_merges(content):
        tokens = [token for token in content["model"]["vocab"] if len(token) < 3][:250]
        merges = [(left, right) for left in tokens for right in tokens][:50_000]
        whole = dict.fromkeys([*content["model"]["vocab"], *map("".join, merges)])
        content["model"]["vocab"] = {token: index for index, token in enumerate(whole)}
        content["model"]["merges"] = merges

    file = write_tokenizer(many_merges)
    used = {}
    for way in ("ours", "theirs"):
        program = [sys.executable, "-c", MEASURE, str(file), way]
        used[way] = int(subprocess.run(program, capture_output=True, check=True).stdout)
    assert used["ours"] < 0.7 * used["theirs"]
