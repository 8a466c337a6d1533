"""Host code of the Metal kernels on the emulated GPU.

Operations run `eval_gpu`; dispatches are recorded, checked and run in any order allowed by the
barriers (tools/metal_emulator/device.py). `TINY_LLM_EMULATED_METAL=1 pdm run test` runs all other
operation and model tests on the emulated GPU, too.
"""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metal.support import EXTENSION
from tests.ops.test_fuzz import CASE_OF, NAMES, Arguments, fuzzed, outcome
from tests.support import assert_close, assert_same_bits, random
from tests.support import use_emulated_gpu as on_gpu
from tiny_llm import (
    LLM,
    Qwen3ModelWeek2,
    Qwen3ModelWeek3,
    SamplingParams,
    kernels,
    load,
    simple_generate_with_kv_cache,
)
from tiny_llm.batch import BatchGeneration
from tools.metal_emulator import Device, MetalFault

pytestmark = pytest.mark.skipif(
    not kernels.computes_on_cpu() or not kernels.is_built(), reason="needs a machine without a GPU"
)


@pytest.fixture
def gpu() -> Iterator[Device]:
    with on_gpu() as device:
        yield device


# Operations whose kernels compile slowly for the emulator; a quick run covers them in other tests.
ATTENTION = {"flash_attention", "paged_attention", "paged_attention_varlen"}
SLOW_TO_COMPILE = {"matmul", "quantized_matmul", *ATTENTION}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name in SLOW_TO_COMPILE else name
        for name in sorted(set(CASE_OF) & set(NAMES))
    ],
)
@fuzzed
@given(data=st.data())
def test_random_arguments_give_correct_results(gpu, name, data):
    gpu.order = data.draw(st.sampled_from(["forward", "reverse", "random"]))
    gpu.extension.metal.emulator.set_delay(data.draw(st.sampled_from([0, 3])))
    kwargs, expected = CASE_OF[name](Arguments(data.draw))
    results = outcome(name, kwargs, gpu.stream())
    expected = expected if isinstance(expected, tuple) else (expected,)
    for actual, oracle in zip(results, expected, strict=True):
        assert_close(actual, mx.array(oracle.astype(np.float32)), name, ulps=40)


def test_derivatives(gpu):
    x, y = random(5), random(5)

    def total(x, y):
        return mx.sum(kernels.axpby(x, y, 2.0, 3.0))

    slopes = mx.grad(total, argnums=(0, 1))(x, y)
    assert [slope.tolist() for slope in slopes] == [[2.0] * 5, [3.0] * 5]


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_pending_commands_run_in_any_order_allowed_by_barriers(gpu, order):
    """Each graph has two dependent kernels, which need a barrier between them."""
    weight, emulator = random(40), kernels.extension().metal.emulator
    inputs = [random(6, 40) for _ in range(3)]

    def graphs():
        results = [kernels.rms_norm(kernels.swiglu(x, x), weight, 1e-6) for x in inputs]
        mx.eval(results)
        return results

    expected, before = graphs(), gpu.launches["swiglu_elements_float32"]
    gpu.order = order
    emulator.defer(True)
    try:
        actual = graphs()
        assert gpu.launches["swiglu_elements_float32"] == before, "the commands must be pending"
        emulator.finish()
    finally:
        emulator.defer(False)
    for number, (one, other) in enumerate(zip(actual, expected, strict=True)):
        assert_same_bits(one, other, f"graph {number}, {order}")


def layers_of_a_step(demo, order, gpu):
    """All layers of a decode step, encoded before the first command runs."""
    mx.random.seed(3)
    model = Qwen3ModelWeek3(demo[0], page_size=8)
    cache = model.create_kv_cache()
    mx.eval(model(mx.array([[3, 17, 130, 5, 99]]), 0, cache))
    x = random(1, 1, model.embedding(mx.array([[1]])).shape[-1], dtype=model.dtype)
    cos_sin = model.rope.cos_sin(slice(5, 6), 1, 1)
    mx.eval(x, cos_sin)
    emulator, gpu.order = kernels.extension().metal.emulator, order
    emulator.defer(True)
    try:
        step_plan = model._plan(cache, 1, 1)
        mx.eval(step_plan.attention_metadata.arrays)
        sums = model._run_planned(x, cos_sin, step_plan)
        del step_plan  # its references to the KV buffers would prevent in-place writes
        mx.eval(sums)
        emulator.finish()
    finally:
        emulator.defer(False)
        gpu.order = "forward"
    return sums


@pytest.mark.slow
@pytest.mark.parametrize("order", ["reverse", "random"])
def test_all_layers_in_one_command_buffer(gpu, demo, order):
    expected = layers_of_a_step(demo, "forward", gpu)
    for one, other in zip(layers_of_a_step(demo, order, gpu), expected, strict=True):
        assert_same_bits(one, other, order)


def test_missing_barrier_is_a_hazard(gpu):
    """Two commands write a buffer, first with a barrier in between, then without."""
    x = mx.zeros(64)
    mx.eval(x)
    address = np.array(x, copy=False).__array_interface__["data"][0]
    parameters = "device float* x [[buffer(0)]], uint i [[thread_position_in_grid]]"
    gpu.compile(
        "hazard",
        f"#include <metal_stdlib>\n[[kernel]] void write({parameters}) {{ x[i] = 1; }}",
    )
    command = {
        "operation": "write",
        "library": "hazard",
        "kernel": "write",
        "buffers": [(0, address, 256, 0, "float32")],
        "bytes": [],
        "threadgroup_memory": {},
        "grid": [1, 1, 1],
        "threads": [32, 1, 1],
        "has_barrier": False,
    }
    gpu.run([command, {**command, "has_barrier": True}])
    with pytest.raises(
        MetalFault, match=r"access the same memory \(buffer\(0\) of write.*no barrier"
    ):
        gpu.run([command, {**command}])


def test_cache_read_in_flight_is_copied_unless_donated():
    tokens, offsets = random(1, 2, 1, 8), mx.array([3])
    with on_gpu(delay=10) as device:
        for overwrite, copies in ((False, 1), (True, 0)):
            buffer = kernels.cache_write(mx.zeros((1, 2, 9, 8)), tokens, [0])
            mx.eval(kernels.flash_attention(tokens, buffer, buffer))
            before = device.launches.get("metal_copy_strided_bytes4", 0)
            buffer = kernels.cache_write(buffer, tokens, offsets, overwrite)
            mx.eval(buffer)
            assert device.launches.get("metal_copy_strided_bytes4", 0) - before == copies


def test_overwriting_a_shared_buffer_is_a_fault(gpu):
    buffer, tokens = mx.zeros((1, 2, 9, 8)), random(1, 2, 1, 8)
    mx.eval(buffer)
    written = kernels.cache_write(buffer, tokens, [0], overwrite=True)
    with pytest.raises(RuntimeError, match="overwrites input 0, which another array"):
        mx.eval(written)
    assert "overwrites input 0" in gpu.take_faults()[0]


QUESTIONS = ["What is a cat?", "Who are you?", "What is two plus three?", "Hello!"]


MODELS = {2: functools.partial(Qwen3ModelWeek2, enable_flash_attn=True), 3: Qwen3ModelWeek3}


def cache_copies(device):
    return [name for name in device.launches if name.startswith("metal_copy")]


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 1000])
@pytest.mark.parametrize("week", [2, 3])
def test_model_output_equals_cpu_without_cache_copies(demo, week, delay):
    make = MODELS[week]
    expected = simple_generate_with_kv_cache(make(demo[0]), demo[1], QUESTIONS[0], max_tokens=6)
    with on_gpu(delay=delay) as device:
        model = make(demo[0])
        text = simple_generate_with_kv_cache(model, demo[1], QUESTIONS[0], max_tokens=6)
        attention = ["flash_attention", "paged_attention"][week - 2]
        assert any(name.startswith(attention) for name in device.launches)
        assert not cache_copies(device)
    assert text == expected


@pytest.mark.slow
@pytest.mark.parametrize("week", [2, 3])
def test_batch_dispatches_ahead_without_cache_copies(week):
    """Prefills two chunks into a freed slot while another request decodes."""
    # Emulation time is proportional to the number of layers.
    mlx_model, tokenizer = load("demo-draft")

    def run():
        model, limits = MODELS[week](mlx_model), {"max_tokens": [3, 4, 2], "ignore_eos": True}
        batch = BatchGeneration(model, tokenizer, QUESTIONS[:3], 16, 2, 4, **limits)
        num_ahead = 0
        while not batch.is_done:
            batch.step()
            num_ahead += batch._in_flight is not None
        return batch.outputs, num_ahead

    expected, _ = run()
    with on_gpu(delay=1000) as device:
        answers, num_ahead = run()
        assert not cache_copies(device)
    assert answers == expected
    assert num_ahead >= 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_model_output_survives_loose_arithmetic(demo, seed):
    """Loose arithmetic changes logits by less than the gap of the top two."""
    arguments = (demo[1], QUESTIONS[0], None, 12)
    expected = simple_generate_with_kv_cache(Qwen3ModelWeek3(demo[0]), *arguments)
    with on_gpu(mode="loose", order="random", seed=seed):
        assert simple_generate_with_kv_cache(Qwen3ModelWeek3(demo[0]), *arguments) == expected


@pytest.mark.parametrize("batch", [1, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_engine_output_equals_cpu(demo, kv_cache_dtype, batch):
    params = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)
    prompts = (QUESTIONS * 2)[:batch]

    def answers():
        # Few bytes, because the emulator copies each kernel argument.
        llm = LLM(demo, block_size=16, kv_cache_bytes=2e6, kv_cache_dtype=kv_cache_dtype)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert (llm.runner.async_scheduling.num_hits > 0) == (not kernels.computes_on_cpu())
        return [output.outputs[0].token_ids for output in outputs]

    expected = answers()
    with on_gpu(delay=1000) as device:
        assert answers() == expected
        assert not cache_copies(device)
        assert any(name.startswith("paged_attention_decode") for name in device.launches)


def test_kernel_sources_are_complete_with_line_numbers():
    texts = kernels.extension().metal.sources()
    assert set(texts) == {file.stem for file in EXTENSION.rglob("*.metal")}
    for name, text in texts.items():
        assert '#include "' not in text, f"{name}: a project header is not inlined"
        assert f'/{name}.metal"' in text.splitlines()[0]


def test_uncompilable_kernel_falls_back_to_cpu_with_one_warning(capfd):
    x, weight = random(3, 50), random(50)
    expected = kernels.rms_norm(x, weight, 1e-6), kernels.swiglu(x, x)
    metal = kernels.extension().metal
    with on_gpu() as device:
        compile_text = device.compile

        def fail_rms_norm(name, text):
            if name.startswith("tiny_llm_rms_norm"):
                text = text.replace("[[kernel]]", "[[kernel]] no_such_type", 1)
            return compile_text(name, text)

        metal.emulator.attach(fail_rms_norm, device.run)
        for _ in range(2):
            assert_same_bits(kernels.rms_norm(x, weight, 1e-6), expected[0], "fallback on the CPU")
            assert_close(kernels.swiglu(x, x), expected[1], "other kernels still run on the GPU")
        states = {library.file: library for library in metal.library_states()}
        assert set(device.launches) == {"swiglu_elements_float32"}
    warnings = capfd.readouterr().err
    assert warnings.count("tiny-llm: rms_norm in float32 runs on the CPU") == 1
    assert "rms_norm.metal:" in warnings, "expected the compiler's message with its location"
    assert states["rms_norm"].state == "failed"
    assert "no_such_type" in states["rms_norm"].message
    assert states["swiglu"].state == "compiled"
    assert states["axpby"].state == "not tried"


PROMPT = f"--prompt={QUESTIONS[0]}"
SHORT = ["--min-input-len=4", "--max-input-len=8", "--min-output-len=2", "--max-output-len=4"]
COMMANDS = [
    (["main", PROMPT, "--max-tokens=4", "--device=gpu"], "A cat catches"),
    (["main", "--loader=week3", PROMPT, "--max-tokens=4", "--device=gpu"], "A cat"),
    (["chat", "--max-tokens=4", "--device=gpu"], "A cat catches"),
    (["batch", "--model=demo-draft", "--batch-size=8", "--max-tokens=2", "--device=gpu"], "16"),
    (["bench", "--num-seqs=2", "--batch-size=2", *SHORT, "--device=gpu"], "tokens/s"),
    (["check"], "Metal emulator"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "expected"), COMMANDS, ids=lambda value: value[0])
def test_commands_without_a_metal_compiler(tmp_path, arguments, expected):
    """Simulates a Mac without Xcode, which has neither `metal` nor `xcrun`."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("clang++-19", "clang++", "llvm-symbolizer-19", "addr2line", "ld"):
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            (tools / tool).symlink_to(f"/usr/bin/{tool}")
    result = subprocess.run(
        [sys.executable, "-m", "tiny_llm", *arguments],
        capture_output=True,
        text=True,
        check=False,
        input=f"{QUESTIONS[0]}\n",
        timeout=300,
        env={**os.environ, "TINY_LLM_EMULATED_METAL": "1", "PATH": str(tools), "COLUMNS": "200"},
    )
    assert expected in result.stdout, result.stderr
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_server_output_equals_cpu(monkeypatch):
    pytest.importorskip("fastapi", reason="needs the server's dependencies")
    from tests.server.running_server import RunningServer

    def answers(server):
        """Texts of eight concurrent completions."""
        bodies = [{"prompt": text, "max_tokens": 6, "temperature": 0} for text in (*QUESTIONS,) * 2]
        with ThreadPoolExecutor(len(bodies)) as pool:
            replies = pool.map(lambda body: server.post("/v1/completions", body).json(), bodies)
        return [reply["choices"][0]["text"] for reply in replies]

    expected = []
    for value, device in (("0", "cpu"), ("1", "gpu")):
        monkeypatch.setenv("TINY_LLM_EMULATED_METAL", value)
        server = RunningServer("--device", device)
        try:
            expected.append(answers(server))
        finally:
            assert server.stop() == 0
    assert expected[0] == expected[1]
