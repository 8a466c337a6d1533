"""Memory pressure: evicting and freeing cached prefixes changes no output."""

import ctypes
import shutil
import subprocess
import sys
from functools import partial
from unittest import mock

import pytest

from tests.engine.hybrid import build as build_hybrid
from tests.engine.hybrid import write_hybrid
from tests.engine.support import CASES, assert_same_outputs, run_cases
from tests.models.support import FAMILIES
from tests.models.test_model_size import write_sparse
from tests.support import resident_bytes
from tiny_llm import LLM, SamplingParams
from tiny_llm.demo import TARGET_PATH
from tiny_llm.engine import core
from tiny_llm.models import memory

ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1)


@pytest.fixture
def shortage(monkeypatch):
    """Simulates low memory at every step."""
    monkeypatch.setattr(core, "MEMORY_CHECK_INTERVAL", 0)
    monkeypatch.setattr(memory, "is_memory_short", lambda: True)


OPTIONS = (
    *({}, {"kv_cache_dtype": "int8"}, {"draft_model": "demo-draft"}),
    *({"speculative": "ngram"}, {"tensor_parallel_size": 2}),
)


@pytest.mark.parametrize(
    "options", ["hybrid", *(pytest.param(o, marks=pytest.mark.slow) for o in OPTIONS)], ids=str
)
def test_outputs_do_not_change(shortage, tmp_path, options):
    if options == "hybrid":
        make_llm = partial(build_hybrid, str(write_hybrid(tmp_path / "model")), block_size=4)
    else:
        make_llm = partial(LLM, "demo", kv_cache_bytes=2**22, block_size=4, **options)
    llm, cases = make_llm(), range(len(CASES))
    original, released = llm.runner.release, []

    def record_releases(pages, slots):
        before = llm.runner.nbytes
        original(pages, slots)
        released.append(before - llm.runner.nbytes)
        llm.scheduler.check_integrity()

    llm.runner.release = record_releases
    actual, actual_logits = run_cases(llm, cases, 2)
    with mock.patch.object(memory, "is_memory_short", return_value=False):
        expected, expected_logits = run_cases(make_llm(), cases, 2)
    assert any(released), "expected some memory to be released"
    assert llm.num_memory_evictions > 0
    assert_same_outputs(actual, actual_logits, (expected, expected_logits))
    assert actual_logits.keys() == expected_logits.keys()


def fill(llm, num_prompts=6, length=200):
    for first in range(num_prompts):
        llm.generate([[100 + first] * length], ONE_TOKEN)


def test_half_of_the_cached_pages_is_evicted_in_lru_order(caplog):
    llm = LLM("demo", kv_cache_bytes=2**26)
    fill(llm)
    pages, before = llm.scheduler.pages, llm.runner.nbytes
    assert pages.cache.num_evictable == 6 * 6
    llm.release_cached_memory()
    assert pages.cache.num_evictable == llm.num_memory_evictions == 3 * 6
    assert llm.runner.nbytes == 3 * 6 * 2**18 < before
    assert "evicted 18 cached pages" in caplog.text
    [newest] = llm.generate([[105] * 200], ONE_TOKEN)
    assert newest.num_cached_tokens == 6 * 32
    [oldest] = llm.generate([[100] * 200], ONE_TOKEN)
    assert oldest.num_cached_tokens == 0


def test_idle_engine_releases_everything():
    llm = LLM("demo", kv_cache_bytes=2**26)
    fill(llm)
    for _ in range(10):
        llm.release_cached_memory()
    assert llm.runner.nbytes == 0
    fill(llm, 1)


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="reads Linux's /proc/self/statm"
)
def test_released_memory_is_returned_to_the_system():
    llm = LLM("demo", kv_cache_bytes=2**27)
    llm.reserve()
    allocated, before = llm.runner.nbytes, resident_bytes()
    assert allocated == 2**27
    llm.release_cached_memory()
    assert before - resident_bytes() > 0.9 * allocated


def test_memory_is_checked_once_per_interval(monkeypatch):
    llm, checks = LLM("demo", kv_cache_bytes=2**24), []
    monkeypatch.setattr(memory, "is_memory_short", lambda: bool(checks.append(1)))
    monkeypatch.setattr(core, "MEMORY_CHECK_INTERVAL", 1e9)
    llm.generate([[5, 6, 7]], SamplingParams(max_tokens=20, ignore_eos=True))
    assert len(checks) == 1


PEAK = """
import resource, sys
import mlx.core as mx
from tiny_llm import LLM, SamplingParams
from tiny_llm.models.memory import model_size
from pathlib import Path

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
unit = 1 if sys.platform == "darwin" else 1024
folder, kv_cache_bytes = sys.argv[1], int(sys.argv[2])
LLM("demo", kv_cache_bytes=2**20).generate("a", SamplingParams(max_tokens=2))  # libraries
before = peak()
llm = LLM(folder, kv_cache_bytes=kv_cache_bytes, max_model_len=2048)
params, first = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), 10
while llm.scheduler.pages.allocator.num_free > 16:
    llm.generate([[first + i] * 400 for i in range(4)], params)
    first += 4
declared = model_size(Path(folder)).weight_bytes + kv_cache_bytes
print((peak() - before) / declared, llm.runner.nbytes / kv_cache_bytes)
"""


@pytest.mark.slow
def test_peak_memory_is_at_most_1_1_times_weights_and_kv_memory(tmp_path):
    """A 250 MB model fills 300 MB of KV memory; libraries are not counted."""
    config = {
        **FAMILIES["qwen3"],
        "hidden_size": 256,
        "num_hidden_layers": 12,
        "num_key_value_heads": 8,
        "num_attention_heads": 8,
        "head_dim": 256,
        "vocab_size": 400_000,
        "max_position_embeddings": 4096,
    }
    folder = tmp_path / "model"
    write_sparse(folder, config)
    for file in TARGET_PATH.glob("*token*"):
        shutil.copy(file, folder)
    command = [sys.executable, "-c", PEAK, str(folder), str(300 * 10**6)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peak_per_declared, kv_memory_used = map(float, output.split())
    assert kv_memory_used > 0.9
    assert peak_per_declared < 1.1
