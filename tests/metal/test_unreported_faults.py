"""Emulated GPU faults swallowed before a test or user sees them.

An engine attributes an error in a step to a request and continues, so the emulated device keeps
its faults and reports them at exit.
"""

import os
import re
import subprocess
import sys

import pytest

from tests.support import use_emulated_gpu
from tiny_llm import LLM, SamplingParams, kernels, load
from tools.metal_emulator import UnreportedFaultError

pytestmark = pytest.mark.skipif(
    not kernels.computes_on_cpu() or not kernels.is_built(), reason="there is a GPU already"
)


def too_small_after(device, launches, kernel="paged_attention_decode"):
    """From the n-th launch of a kernel on, truncates its first input to half."""
    run, launched = device.run, []

    def run_with_less(commands):
        for command in commands:
            if command["kernel"].startswith(kernel):
                launched.append(command)
                if len(launched) > launches:
                    index, address, size, *others = command["buffers"][0]
                    command["buffers"][0] = (index, address, size // 2, *others)
        run(commands)

    device.extension.metal.emulator.attach(device.compile, run_with_less, device.record_fault)


def answer_with_a_fault():
    """Fault in mid-step: the prompt and three tokens are correct, then layer 2 fails."""
    model, tokenizer = load("demo-draft")
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    with use_emulated_gpu() as device:
        too_small_after(device, launches=3 * model.args.num_hidden_layers + 1)
        llm = LLM((model, tokenizer), kv_cache_bytes=2e6, block_size=16)
        (output,) = llm.generate(["What is a cat?"], params, show_progress=False)
        assert output.outputs[0].finish_reason == "error"


def test_fault_swallowed_by_the_engine_is_reported_at_exit():
    with pytest.raises(UnreportedFaultError, match=r"(?s)out-of-bounds in paged_attention_decode"):
        answer_with_a_fault()


SWALLOWED = """
import sys
import mlx.core as mx
from tests.metal.test_unreported_faults import too_small_after
from tiny_llm import kernels
from tiny_llm.cli.entrypoint import main
too_small_after(kernels.extension().emulated_gpu.device, int(sys.argv[1]))
sys.exit(main(["batch", "--model", "demo-draft", "--device", "gpu", "--max-tokens", "2"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("launches", [20, 1_000_000])
def test_faulty_command_fails(launches):
    """Fault-free commands succeed."""
    result = subprocess.run(
        [sys.executable, "-c", SWALLOWED, str(launches)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "TINY_LLM_EMULATED_METAL": "1"},
    )
    has_fault = launches == 20
    assert result.returncode == int(has_fault), result.stderr
    sentence = r"TINY_LLM_EMULATED_METAL=1 found a fault: \w+: .*out-of-bounds in paged_attention"
    assert bool(re.search(sentence, result.stderr)) == has_fault, result.stderr
