"""Reports of emulated GPU faults whose exceptions are caught by the engine.

The engine attributes an error in a step to a request and continues, so the emulated device records
faults and reports them at exit.
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
    not kernels.computes_on_cpu() or not kernels.is_built(), reason="needs a machine without a GPU"
)


def truncate_input_after(device, launches, kernel="paged_attention_decode"):
    """Halves a kernel's first input after the given number of launches."""
    run, launched = device.run, []

    def run_truncated(commands):
        for command in commands:
            if command["kernel"].startswith(kernel):
                launched.append(command)
                if len(launched) > launches:
                    index, address, size, *others = command["buffers"][0]
                    command["buffers"][0] = (index, address, size // 2, *others)
        run(commands)

    device.extension.metal.emulator.attach(device.compile, run_truncated, device.record_fault)


def generate_with_fault():
    """Generates with a fault in layer 2 after a prefill and three tokens."""
    model, tokenizer = load("demo-draft")
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    with use_emulated_gpu() as device:
        truncate_input_after(device, launches=3 * model.args.num_hidden_layers + 1)
        llm = LLM((model, tokenizer), kv_cache_bytes=2e6, block_size=16)
        (output,) = llm.generate(["What is a cat?"], params, use_tqdm=False)
        assert output.outputs[0].finish_reason == "error"


def test_fault_swallowed_by_the_engine_is_reported_at_exit():
    with pytest.raises(UnreportedFaultError, match=r"(?s)out-of-bounds in paged_attention_decode"):
        generate_with_fault()


SWALLOWED = """
import sys
import mlx.core as mx
from tests.metal.test_unreported_faults import truncate_input_after
from tiny_llm import kernels
from tiny_llm.cli.entrypoint import main
truncate_input_after(kernels.extension().emulated_gpu.device, int(sys.argv[1]))
sys.exit(main(["batch", "--model", "demo-draft", "--device", "gpu", "--max-tokens", "2"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("launches", [20, 1_000_000])
def test_faulty_command_fails(launches):
    """The command's exit status is nonzero if and only if there was a fault."""
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
    message = r"TINY_LLM_EMULATED_METAL=1 found a fault: \w+: .*out-of-bounds in paged_attention"
    assert bool(re.search(message, result.stderr)) == has_fault, result.stderr
