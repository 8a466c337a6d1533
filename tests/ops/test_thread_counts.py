"""All operations on 1 to 4 threads: bitwise equal."""

import pytest

from tests.conftest import INSTRUCTION_SETS
from tests.support import assert_same_on_any_number_of_threads

PROGRAM = """
import mlx.core as mx
from tests.ops.operations import OPERATIONS
from tests.ops.recurrent_problems import conv_problem, delta_problem, int32, ragged_batch
from tests.support import random
from tiny_llm import kernels

def x(*shape):
    return random(*shape, dtype=mx.bfloat16)

def int8_pages():
    pages = mx.zeros((12, 2, 32, 84), mx.int8)
    return kernels.paged_cache_write(pages, x(384, 2, 80), int32(range(384)))

def attend(*arrays, ends=(0, 1, 41, 170), lengths=(99, 40, 128), **options):
    table = mx.random.permutation(12).reshape(3, 4).astype(mx.int32)
    lengths = int32(ends), int32(lengths)
    return kernels.paged_attention_varlen(*arrays, *lengths, table, **options)

kernels.use_cpu()
mx.random.seed(3)
batch, pages, sinks = ragged_batch([30, 1, 7]), (12, 2, 32, 80), mx.arange(8).astype(mx.float32)
dense = (2, 2, 333, 80)
window = {"ends": (0, 1, 60, 90), "lengths": (128, 100, 90), "window": 33}
sizes = (70, 512), (3, 8192)
results = [
    op(**op.arguments(mx.bfloat16, *MI))
    for op in OPERATIONS
    for MI in (sizes if op.has_empty_rows else sizes[:1])  # heads have at most 512 elements
]
results += [
    [kernels.flash_attention(x(2, 4, 150, 80), x(*dense), x(*dense), 0.1, True)],
    [kernels.flash_attention(x(2, 8, 60, 80), x(*dense), x(*dense), causal=True, sinks=sinks)],
    [attend(x(170, 4, 80), x(*pages), x(*pages))],
    [attend(x(170, 4, 80), int8_pages(), int8_pages())],
    [attend(x(90, 8, 80), x(*pages), x(*pages), **window)],
    kernels.gated_delta_rule(**delta_problem(2, 4, 64, 96, batch, mx.bfloat16), num_k_heads=2),
    kernels.causal_conv1d(**conv_problem(4, 700, batch, mx.float32)),
]
hashes = [hash(tuple(map(bytes, each))) for each in results]
print(kernels.extension().num_threads(), *hashes)
"""


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.other_isa) for name in INSTRUCTION_SETS[:-1]),
        INSTRUCTION_SETS[-1],
    ],
)
def test_bitwise_equal_for_any_thread_count(monkeypatch, name):
    monkeypatch.setenv("TINY_LLM_CPU_ISA", name)
    assert_same_on_any_number_of_threads(PROGRAM)
