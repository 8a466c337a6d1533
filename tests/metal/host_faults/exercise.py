"""Calls that expose each seeded fault, and a program that tries all of them.

    python -m tests.metal.host_faults.exercise PACKAGE    # prints number, tab, report

PACKAGE is the folder returned by `build.build`.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np

Call = Callable[..., mx.array | tuple[mx.array, ...]]
BF16 = mx.bfloat16


def random(*shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape).astype(dtype)


def calls(operation: str, ext: Any) -> Iterator[Call]:
    """Yields functions that call the operation on a given stream."""
    e = ext
    x = random(3, 7, 48)
    if operation == "axpby":
        yield lambda s: e.axpby(x, x + 1, 2.0, 3.0, stream=s)
    if operation in ("swiglu", "few threads"):
        both = random(4, 600)
        yield lambda s: e.swiglu(both[:, :300], both[:, 300:], stream=s)
        gate, up = random(2, 9), random(2, 9)
        mx.eval(gate, up)
        yield lambda s: e.swiglu(gate, up, stream=s)
    if operation == "add_bias":
        both, bias = random(4, 600), random(600)
        yield lambda s: e.add_bias(both[:, :300], bias[::2], stream=s)
        rows, few = random(2, 9), random(9)
        mx.eval(rows)
        yield lambda s: e.add_bias(rows, few, stream=s)
    if operation == "rms_norm":
        weight = random(7)
        yield lambda s: e.rms_norm(x.swapaxes(1, 2), weight, 1e-6, stream=s)
        y, gaps, long = random(3, 7, 48), random(96)[::2], random(2048)
        yield lambda s: e.add_rms_norm(x, y, gaps, 1e-6, stream=s)
        yield lambda s: e.add_rms_norm(long, long, long, 1e-6, stream=s)
    if operation == "qk_norm_rope":
        B, L, H, D = 2, 3, 4, 16
        cos, sin = random(B, L, D // 2), random(B, L, D // 2)
        heads, gaps = random(B, L, H, D), random(B, L, H, 2 * D)[..., ::2]
        weight = random(D)
        yield lambda s: e.qk_norm_rope(heads, weight, 1e-6, cos, sin, stream=s)
        yield lambda s: e.qk_norm_rope(gaps, weight, 1e-6, cos, sin, stream=s)
        yield lambda s: e.qk_norm_rope(heads, None, 1e-6, cos, sin, stream=s)
    if operation in ("quantized_matmul", "quantized_embedding"):
        words, scales, biases = mx.quantize(random(30, 128, dtype=BF16), 32, 4)
        a = random(5, 128, dtype=BF16)
        ids = mx.array([[3, 1, 29], [0, 7, 8]], mx.int32)[:, ::2]
        if operation == "quantized_matmul":
            yield lambda s: e.quantized_matmul(scales, biases, 32, 4, a, words, stream=s)
        else:
            yield lambda s: e.quantized_embedding(ids, scales, biases, 32, 4, words, stream=s)
    if operation == "matmul":
        rows, few = random(7, 48), random(5, 48)
        yield lambda s: e.matmul(rows, few, stream=s)
        a, b = random(40, 2048, dtype=BF16), random(33, 2048, dtype=BF16)
        yield lambda s: e.matmul(a, b, stream=s)
    if operation == "flash_attention":
        query, key, value = random(2, 4, 2, 33), random(2, 2, 600, 33), random(2, 2, 600, 33)
        yield lambda s: e.flash_attention(query, key, value, causal=True, stream=s)
        yield lambda s: e.flash_attention(
            query, key, value, context_lens=mx.array([5, 600]), stream=s
        )
        mask = random(2, 1, 12, 600, dtype=BF16)
        short = random(2, 4, 12, 33)
        yield lambda s: e.flash_attention(short, key, value, mask=mask, stream=s)
        transposed = random(2, 600, 2, 33).swapaxes(1, 2)
        yield lambda s: e.flash_attention(short, key, transposed, causal=True, stream=s)
        sinks = random(4) * 4
        yield lambda s: e.flash_attention(short, key, value, sinks=sinks, stream=s)
    if operation == "paged_attention":
        pages = random(7, 2, 8, 16), random(7, 2, 8, 16)
        table, lengths = mx.array([[4, 0, 6], [2, -1, -1]]), mx.array([20, 3])
        for L in (1, 3, 11):
            query = random(2, 4, L, 16)
            yield lambda s, q=query: e.paged_attention(q, *pages, table, lengths, stream=s)
        sinks = random(4) * 4
        yield lambda s: e.paged_attention(query, *pages, table, lengths, sinks=sinks, stream=s)
    if operation == "cache_write":
        tokens = random(2, 3, 2, 8)
        offsets = mx.array([1, 5], mx.int32)
        yield lambda s: e.cache_write(mx.ones((2, 3, 9, 8)), tokens, offsets, stream=s)
        gaps = random(2, 3, 18, 8)[:, :, ::2]
        yield lambda s: e.cache_write(gaps, tokens, offsets, stream=s)
        kept = random(2, 3, 9, 8)
        mx.eval(kept)
        yield lambda s: e.cache_write(kept, tokens, offsets, stream=s)
    if operation == "paged_cache_write":
        tokens, slots = random(1, 2, 3, 8), mx.array([[0, 9, 15]])
        kept = random(2, 2, 8, 8)
        mx.eval(kept)
        yield lambda s: e.paged_cache_write(mx.ones((2, 2, 8, 8)), tokens, slots, stream=s)
        yield lambda s: e.paged_cache_write(kept, tokens, slots, stream=s)
    if operation == "sigmoid_gate":
        both = random(4, 600)
        yield lambda s: e.sigmoid_gate(both[:, :300], both[:, 300:], stream=s)
    if operation == "gated_rms_norm":
        o, both, weight = random(4, 300), random(4, 600), random(300)
        yield lambda s: e.gated_rms_norm(o, both[:, :300], weight, 1e-6, stream=s)
    slots = [mx.array(values) for values in ([0, 3, 4], [1, -1], [2, -1, 1, 0])]
    if operation == "causal_conv1d":
        states, rows, taps = random(3, 3, 16), random(4, 16), random(16, 4)
        yield lambda s: e.causal_conv1d(rows, taps, states, *slots, stream=s)
    if operation == "gated_delta_rule":
        states, qkv, gates = random(3, 2, 6, 8), random(4, 28), random(4, 4)
        mx.eval(states)
        parameters = (gates[:, :2], gates[:, 2:], random(2), random(2))
        yield lambda s: e.gated_delta_rule(qkv, *parameters, states, *slots, 1, stream=s)


def fault_report(operation: str, ext: Any, gpu: Any) -> str:
    """The emulated GPU's report on an operation's calls; empty without a fault."""
    for number, call in enumerate(calls(operation, ext)):
        expected = call(mx.cpu)
        try:
            actual = call(gpu.stream())
            mx.eval(actual)
        except Exception as error:  # any exception counts as a detected fault
            gpu.take_faults()
            notes = " ".join(getattr(error, "__notes__", []))
            return f"{error} {notes}".replace("\n", " ")
        one_output = isinstance(actual, mx.array)
        pairs = [(actual, expected)] if one_output else zip(actual, expected, strict=True)
        for output, (one, other) in enumerate(pairs):
            one, other = (np.array(array.astype(mx.float32)) for array in (one, other))
            if not np.allclose(one, other, rtol=0.02, atol=0.02, equal_nan=True):
                return f"{operation}: output {output} of call {number} differs from the CPU's"
    return ""


def package_in(folder: str) -> ModuleType:
    """Imports `tiny_llm_ext` from a folder instead of the editable installation."""
    sys.meta_path[:] = [one for one in sys.meta_path if "Redirecting" not in type(one).__name__]
    sys.path.insert(0, folder)
    module = importlib.import_module("tiny_llm_ext")
    assert str(module._ext.__file__).startswith(folder), module._ext.__file__
    return module


def main(package: str) -> None:
    """Activates each fault and prints its report; fault 0 is unmodified code."""
    tiny_llm_ext = package_in(package)
    from tests.metal.host_faults.faults import FAULTS
    from tools.metal_emulator import emulated_gpu

    mx.random.seed(1)
    operations = sorted({fault.operation for fault in FAULTS})
    active = [(0, operation) for operation in operations]
    active += [(number, fault.operation) for number, fault in enumerate(FAULTS, start=1)]
    for max_threads in (1024, 64):
        with emulated_gpu(tiny_llm_ext, max_threads=max_threads) as gpu:
            for number, operation in active:
                if (operation == "few threads") == (max_threads == 64):
                    os.environ["TINY_LLM_SEEDED_FAULT"] = str(number)
                    print(f"{number}\t{fault_report(operation, tiny_llm_ext, gpu)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
