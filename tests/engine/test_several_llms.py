"""Several `LLM` objects in one process: budgets, threads, released memory."""

import gc
import threading
import weakref
from pathlib import Path

import mlx.core as mx
import pytest

from tests.engine.hybrid import write_hybrid
from tiny_llm import LLM, SamplingParams
from tiny_llm.models.memory import model_size

PROMPTS = ["RoPE is", "The capital of France is", "word " * 100]
PARAMS = SamplingParams(max_tokens=20, ignore_eos=True, seed=3, temperature=1.0)
KV_BYTES = 4_000_000


def generate(llm):
    outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def num_threads():
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_concurrent_llms_share_threads_and_keep_their_budgets(tmp_path):
    """Outputs equal those of a single `LLM`; kernels share one thread pool."""
    models = ["demo", str(write_hybrid(tmp_path / "hybrid"))]
    reference = [generate(LLM(model, kv_cache_bytes=KV_BYTES)) for model in models]
    before = num_threads()
    results: dict[int, object] = {}
    threads: list[int] = []
    barrier = threading.Barrier(len(models))

    def run(index):
        llm = LLM(models[index], kv_cache_bytes=KV_BYTES)
        barrier.wait(60)
        for _ in range(3):
            results[index] = generate(llm)
            assert results[index] == reference[index]
            assert llm.runner.target.nbytes <= KV_BYTES
        threads.append(num_threads())
        barrier.wait(60)

    runs = [threading.Thread(target=run, args=(index,)) for index in range(len(models))]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()
    assert results == dict(enumerate(reference))
    # Each engine adds a Python thread and the threads of two MLX streams, but no thread pool.
    assert max(threads) - before <= 3 * len(models)


def test_memory_of_an_llm_is_released_with_it(tmp_path):
    folder = write_hybrid(tmp_path / "model", hidden_size=256)
    generate(LLM(str(folder), kv_cache_bytes=KV_BYTES))  # warms up process-wide caches
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    llm = LLM(str(folder), kv_cache_bytes=KV_BYTES)
    generate(llm)
    assert mx.get_active_memory() > before + model_size(folder).weight_bytes / 2
    llm_ref = weakref.ref(llm)
    del llm
    gc.collect()
    assert llm_ref() is None
    assert mx.get_active_memory() <= before + 100_000
