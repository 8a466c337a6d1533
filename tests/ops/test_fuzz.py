"""Fuzz tests: random arguments for every operation of the extension.

Valid arguments in any layout produce correct results; test_operations.py and test_values.py cover
the row operations. For invalid arguments, the operation raises an error with its name or returns a
result, but never crashes the process; silent memory errors are detected by
`pdm run test-sanitizers`.
"""

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ops import recurrent_problems as recurrent
from tests.ops.attention_problems import exact
from tests.ops.operations import OPERATIONS
from tests.support import as_numpy, assert_close
from tiny_llm import kernels
from tiny_llm.attention import paged_attention_reference, paged_attention_varlen_reference

FLOATS = [mx.float32, mx.float16, mx.bfloat16]
SIZES = st.sampled_from([0, 1, 1, 2, 3, 5, 17, 33])
EXTREMES = (2**31 - 1, -(2**31))  # of int32
POSITIVE = st.sampled_from([1, 1, 2, 3, 5, 17, 33])
Draw = Callable[[st.SearchStrategy], Any]
Case = tuple[dict[str, Any], Any]  # valid arguments and the expected result in float32


class Arguments:
    """Random arrays, driven by hypothesis draws."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def shape(self, most: int = 3, least: int = 0) -> tuple[int, ...]:
        return tuple(self.draw(st.lists(SIZES, min_size=least, max_size=most)))

    def array(self, shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
        return self.random_layout(
            mx.array(self.rng.standard_normal(shape, np.float32)).astype(dtype)
        )

    def random_layout(self, x: mx.array) -> mx.array:
        """The array in a random layout: contiguous, strided, transposed or a slice."""
        layout = self.draw(st.sampled_from(["plain", "gaps", "transposed", "inside", "repeated"]))
        if x.ndim == 0 or layout == "plain":
            return x
        if layout == "gaps":
            return mx.repeat(x, 2, axis=-1)[..., ::2]
        if layout == "transposed":
            return mx.contiguous(x.T).T
        if layout == "inside":
            return mx.concatenate([x, x, x], axis=0)[x.shape[0] : 2 * x.shape[0]]
        return mx.broadcast_to(x[:1], x.shape)  # stride 0: all rows equal the first row


def axpby(arguments: Arguments) -> Case:
    dtype, shape = arguments.draw(st.sampled_from(FLOATS)), arguments.shape()
    x, y = arguments.array(shape, dtype), arguments.array(shape, dtype)
    return {"x": x, "y": y, "alpha": 2.0, "beta": -0.5}, 2 * as_numpy(x) - as_numpy(y) / 2


def flash_attention(arguments: Arguments) -> Case:
    draw = arguments.draw
    H, L, S, D = draw(POSITIVE), draw(SIZES), draw(SIZES), draw(st.sampled_from([1, 3, 16, 65]))
    lead, H_q = arguments.shape(1), H * draw(st.sampled_from([1, 2, 3]))
    dtype, causal = draw(st.sampled_from(FLOATS)), draw(st.booleans())
    query = arguments.array((*lead, H_q, L, D), dtype)
    key, value = (arguments.array((*lead, H, S, D), dtype) for _ in range(2))
    kwargs = {"query": query, "key": key, "value": value, "scale": 0.3, "causal": causal}
    mask = "causal" if causal else None
    if not causal and draw(st.booleans()):
        mask = kwargs["mask"] = arguments.array((L, S), dtype)
    return kwargs, exact(query, key, value, 0.3, mask)[0]


def cache_write(arguments: Arguments) -> Case:
    draw = arguments.draw
    B, H, C, D, L = draw(SIZES), draw(SIZES), draw(POSITIVE), draw(SIZES), draw(SIZES)
    L, dtype = min(L, C), draw(st.sampled_from(FLOATS))
    buffer, tokens = arguments.array((B, H, C, D), dtype), arguments.array((B, H, L, D), dtype)
    is_array = draw(st.booleans())
    beyond = st.integers(-3, C - L + 2) | st.sampled_from(EXTREMES)
    offsets = [draw(beyond if is_array else st.integers(-1, C - L)) for _ in range(B)]
    given: Any = offsets
    if is_array:
        given = arguments.random_layout(mx.array(offsets, dtype=mx.int32))
        offsets = given.tolist()
    out = as_numpy(buffer).copy()
    for b, offset in enumerate(offsets):
        if 0 <= offset <= C - L:
            out[b, :, offset : offset + L] = as_numpy(tokens)[b]
    return {"buffer": buffer, "tokens": tokens, "offsets": given}, out


def paged(arguments: Arguments) -> dict[str, Any]:
    """Pages, block table, context lengths and the other arguments but the query."""
    draw = arguments.draw
    B, H, page_size, P = draw(SIZES), draw(POSITIVE), draw(POSITIVE), draw(POSITIVE)
    D, max_pages = draw(st.sampled_from([1, 3, 16, 65])), draw(st.sampled_from([0, 1, 2, 5]))
    dtype, rng = draw(st.sampled_from(FLOATS)), arguments.rng
    pages = {x: arguments.array((P, H, page_size, D), dtype) for x in ("key_pages", "value_pages")}
    table = arguments.random_layout(mx.array(rng.integers(0, P, (B, max_pages)), mx.int32))
    lengths = mx.array(rng.integers(0, max_pages * page_size + 1, (B,)), mx.int32)
    scale = draw(st.sampled_from([0.3, None, 0.0, -0.3]))
    return {**pages, "block_table": table, "context_lens": lengths, "scale": scale}


def reference_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the reference: in float32, with the page size."""
    wide = {name: kwargs[name].astype(mx.float32) for name in ("query", "key_pages", "value_pages")}
    return {**kwargs, **wide, "page_size": kwargs["key_pages"].shape[2]}


def paged_attention(arguments: Arguments) -> Case:
    draw, kwargs = arguments.draw, paged(arguments)
    _, H, _, D = kwargs["key_pages"].shape
    shape = (len(kwargs["context_lens"]), H * draw(st.sampled_from([1, 2, 3])), draw(SIZES), D)
    query, causal = arguments.array(shape, kwargs["key_pages"].dtype), draw(st.booleans())
    kwargs |= {"query": query, "window": draw(SIZES) if causal else 0}
    mask = "causal" if causal else None
    out = query  # the reference needs a query
    if query.size > 0:
        out = paged_attention_reference(**reference_arguments(kwargs), mask=mask)
    return {**kwargs, "causal": causal}, as_numpy(out)


def paged_attention_varlen(arguments: Arguments) -> Case:
    draw, kwargs = arguments.draw, paged(arguments)
    _, H, _, D = kwargs["key_pages"].shape
    ends = np.cumsum([0, *(draw(SIZES) for _ in range(len(kwargs["context_lens"])))])
    shape = (int(ends[-1]), H * draw(st.sampled_from([1, 2, 3])), D)
    kwargs |= {"query": arguments.array(shape, kwargs["key_pages"].dtype), "window": draw(SIZES)}
    kwargs["cu_seqlens_q"] = mx.array(ends, mx.int32)
    return kwargs, as_numpy(paged_attention_varlen_reference(**reference_arguments(kwargs)))


def paged_cache_write(arguments: Arguments) -> Case:
    draw = arguments.draw
    P, H, page_size, D = draw(SIZES), draw(SIZES), draw(POSITIVE), draw(SIZES)
    places, dtype = P * page_size, draw(st.sampled_from(FLOATS))
    pages = arguments.array((P, H, page_size, D), dtype)
    slots = arguments.rng.permutation([*EXTREMES, *range(-3, places + 3)])[: draw(SIZES)]
    tokens = arguments.array((len(slots), H, D), dtype)
    out = as_numpy(pages).copy()
    for token, slot in zip(as_numpy(tokens), slots, strict=True):
        if 0 <= slot < places:
            out[slot // page_size, :, slot % page_size] = token
    return {"pages": pages, "tokens": tokens, "slots": mx.array(slots, mx.int32)}, out


def ragged_batch(arguments: Arguments) -> recurrent.Batch:
    lengths = arguments.draw(st.lists(POSITIVE, min_size=1, max_size=3))
    return recurrent.ragged_batch(lengths, arguments.draw(st.integers(0, 99)))


def causal_conv1d(arguments: Arguments) -> Case:
    draw, batch = arguments.draw, ragged_batch(arguments)
    K, C, dtype = draw(st.integers(2, 8)), draw(POSITIVE), draw(st.sampled_from(FLOATS))
    arrays = {
        "x": arguments.array((sum(batch.lengths), C), dtype),
        "weight": arguments.array((C, K), draw(st.sampled_from([dtype, mx.float32]))),
        "conv_states": arguments.array((recurrent.SLOTS, K - 1, C), dtype),
    }
    kwargs = arrays | batch.arrays
    return kwargs, tuple(map(as_numpy, recurrent.CONV.reference(**kwargs)))


def gated_delta_rule(arguments: Arguments) -> Case:
    draw, batch = arguments.draw, ragged_batch(arguments)
    H_k, group, D_k, D_v = (
        draw(st.sampled_from(sizes)) for sizes in ([1, 3], [1, 2], [1, 9], [1, 40])
    )
    T, H_v, dtype = sum(batch.lengths), H_k * group, draw(st.sampled_from(FLOATS))
    arrays = {
        "qkv": arguments.array((T, 2 * H_k * D_k + H_v * D_v), mx.float32),
        "a": arguments.array((T, H_v), dtype),
        "b": arguments.array((T, H_v), dtype),
        "A_log": arguments.array((H_v,), mx.float32),
        "dt_bias": arguments.array((H_v,), mx.float32),
        "states": arguments.array((recurrent.SLOTS, H_v, D_k, D_v), mx.float32),
    }
    kwargs = {**arrays, **batch.arrays, "num_k_heads": H_k}
    return kwargs, tuple(map(as_numpy, recurrent.DELTA.reference(**kwargs)))


CASES = [axpby, flash_attention, cache_write, paged_attention, paged_attention_varlen]
CASES += [paged_cache_write, causal_conv1d, gated_delta_rule]
CASE_OF = {case.__name__: case for case in CASES}
ROW_OPERATIONS = {
    op.name: [each for each in OPERATIONS if each.name == op.name] for op in OPERATIONS
}
NO_OPERATIONS = {
    "GraphCache",
    "emulated_gpu",
    "instruction_set",
    "instruction_sets",
    "prepack_weight",  # not lazy; tested in tests/ops/test_prepack.py
    "prepack_weight_from_file",
    "read_gguf_blocks",
    "prepack_rows",
    "populate_rows",
    "release_rows",
    "map_file",
    "reserve_zeros",
    "huge_pages",
    "metal",
    "num_threads",
    "rethrow_task_error",
    "simulate_schedule",
    "set_schedule",
}
NAMES = sorted(set(kernels.extension().__all__) - NO_OPERATIONS) if kernels.is_built() else []


def outcome(name: str, kwargs: dict[str, Any], stream: Any = mx.cpu) -> tuple[mx.array, ...]:
    """Evaluated result of the operation, on the CPU by default."""
    result = getattr(kernels.extension(), name)(**kwargs, stream=stream)
    mx.eval(result)
    results = result if isinstance(result, tuple | list) else (result,)
    return tuple(x.astype(mx.float32) if x.dtype == mx.uint32 else x for x in results)


def valid_arguments(name: str, arguments: Arguments) -> dict[str, Any]:
    if name in CASE_OF:
        return CASE_OF[name](arguments)[0]
    op = arguments.draw(st.sampled_from(ROW_OPERATIONS[name]))
    dtype, M = arguments.draw(st.sampled_from(op.dtypes)), arguments.draw(SIZES)
    kwargs = op.arguments(dtype, M, arguments.draw(st.sampled_from(op.columns)))
    return {
        key: arguments.random_layout(value) if isinstance(value, mx.array) else value
        for key, value in kwargs.items()
    }


def with_wrong_argument(arguments: Arguments, kwargs: dict[str, Any]) -> dict[str, Any]:
    draw = arguments.draw
    name = draw(st.sampled_from(sorted(kwargs)))
    value = kwargs[name]
    wrong: list[Any] = [None, "text", -1, 0, 3, 2**40, math.nan, [-2, 3, 2**30]]
    if isinstance(value, mx.array):
        shapes = [value.shape, value.shape[1:], (*value.shape, 2), arguments.shape(5)]
        dtypes = [mx.float32, mx.float16, mx.bfloat16, mx.int32, mx.uint32, mx.bool_]
        shape, dtype = draw(st.sampled_from(shapes)), draw(st.sampled_from([*dtypes, mx.complex64]))
        wrong = [arguments.array(shape, dtype)] * 6 + [None, 1]
    return {**kwargs, name: draw(st.sampled_from(wrong))}


fuzzed = settings(
    derandomize=True,
    deadline=None,
    max_examples=25,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("kernel", [name for name in NAMES if name in CASE_OF])
@fuzzed
@given(data=st.data())
def test_valid_arguments_give_correct_results(instruction_set, kernel, data):
    kwargs, expected = CASE_OF[kernel](Arguments(data.draw))
    expected = expected if isinstance(expected, tuple) else (expected,)
    actual = outcome(kernel, kwargs)
    for result, reference in zip(actual, expected, strict=True):
        assert_close(result, mx.array(reference.astype(np.float32)), kernel, ulps=40)


@pytest.mark.parametrize("name", NAMES)
@fuzzed
@given(data=st.data())
def test_invalid_arguments_are_rejected_or_harmless(instruction_set, name, data):
    arguments = Arguments(data.draw)
    kwargs = with_wrong_argument(arguments, valid_arguments(name, arguments))
    message = name
    try:
        outcome(name, kwargs)
    except (ValueError, TypeError) as error:
        message = str(error)
    assert name in message, "expected the error message to name the operation"
