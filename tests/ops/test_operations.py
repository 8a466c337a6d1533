"""Contract of every row operation in the table `operations.py`."""

import itertools
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from tests.ops.operations import OPERATIONS, Arguments, Operation
from tests.support import as_numpy, assert_same_bits, assert_same_shape

NUMBERS = [op for op in OPERATIONS if op.non_finite]


def of_each_dtype(operations: list[Operation]) -> pytest.MarkDecorator:
    cases = [(op, dtype) for op in operations for dtype in op.dtypes]
    ids = [f"{op.label}-{dtype}".replace("mlx.core.", "") for op, dtype in cases]
    return pytest.mark.parametrize(("op", "dtype"), cases, ids=ids)


def assert_same(actual: tuple[mx.array, ...], expected: tuple[mx.array, ...], what: str) -> None:
    for x, y in zip(actual, expected, strict=True):
        if mx.issubdtype(y.dtype, mx.floating):
            assert_same_bits(x, y, what)
        else:
            assert_same_shape(x, y, what)
            np.testing.assert_array_equal(np.array(x), np.array(y), what)


def rows_of(op: Operation, arguments: Arguments, rows: int | slice) -> Arguments:
    return arguments | {name: arguments[name][rows] for name in op.rows}


def layouts(x: mx.array) -> Iterator[tuple[str, mx.array]]:
    yield "columns of a wider array", mx.concatenate([x, x], axis=-1)[..., x.shape[-1] :]
    yield "every second column", mx.repeat(x, 2, axis=-1)[..., ::2]
    yield "every second row", mx.repeat(x, 2, axis=0)[::2]
    yield "reversed", mx.contiguous(x[::-1])[::-1]
    yield "transposed", mx.contiguous(x.T).T
    yield "broadcast", mx.broadcast_to(x[:1], x.shape)


@of_each_dtype(OPERATIONS)
def test_any_strides_are_bitwise_equal(instruction_set, op, dtype):
    arguments = op.arguments(dtype, 6, op.columns[0])
    for name, value in arguments.items():
        for layout, view in layouts(value) if isinstance(value, mx.array) else ():
            expected = op(**arguments | {name: mx.contiguous(view)})
            assert_same(op(**arguments | {name: view}), expected, f"{name}: {layout}")
    arrays = [name for name, value in arguments.items() if isinstance(value, mx.array)]
    plain = op(**arguments)
    for first in range(5):  # all arguments at once, in different layouts
        views = {
            name: list(layouts(arguments[name]))[(first + n) % 5][1]
            for n, name in enumerate(arrays)
        }
        assert_same(op(**arguments | views), plain, f"layouts from {first}")


@of_each_dtype(OPERATIONS)
def test_rows_are_batch_invariant(instruction_set, op, dtype):
    for M in (2, 3, 4, 5, 6, 7, 13, 64, 65, 131, 193, 389):
        arguments = op.arguments(dtype, M, op.columns[0])
        together = op(**arguments)
        for row in {0, 1, M // 2, M - 1}:
            alone = op(**rows_of(op, arguments, slice(row, row + 1)))
            assert_same(alone, tuple(x[row : row + 1] for x in together), f"row {row} of {M}")


@of_each_dtype([op for op in OPERATIONS if op.any_shape])
def test_any_leading_dimensions(instruction_set, op, dtype):
    arguments = op.arguments(dtype, 6, op.columns[0])
    flat, names = op(**arguments), [name for name in op.rows if name != "adapter_ids"]
    for shape in ((1, 6), (2, 3), (3, 1, 2)):
        shaped = {
            name: arguments[name].reshape(*shape, *arguments[name].shape[1:]) for name in names
        }
        expected = tuple(x.reshape(*shape, *x.shape[1:]) for x in flat)
        assert_same(op(**arguments | shaped), expected, f"{shape}")
    first = rows_of(op, arguments, slice(1))
    row = op(**first | {name: arguments[name][0] for name in names})
    assert_same(row, tuple(x[0] for x in flat), "no leading dimensions")


@of_each_dtype(OPERATIONS)
def test_no_rows_and_no_columns(instruction_set, op, dtype):
    I = op.columns[0]
    arguments = op.arguments(dtype, 2, I)
    shapes = [x.shape for x in op(**arguments)]
    assert [x.shape for x in op(**rows_of(op, arguments, slice(0)))] == [
        (0, *s[1:]) for s in shapes
    ]
    if op.non_finite and op.has_empty_rows and I != 256:  # quantized rows have at least one group
        none = op(**op.arguments(dtype, 2, 0))
        assert [x.shape for x in none] == [tuple(n * (n != I) for n in s) for s in shapes]


@of_each_dtype([op for op in NUMBERS if op.name in ("swiglu", "add_rms_norm", "sigmoid_gate")])
def test_same_array_for_both_inputs(instruction_set, op, dtype):
    arguments = op.arguments(dtype, 5, op.columns[0])
    x = arguments[op.rows[0]]
    expected = op(**arguments | {op.rows[0]: x, op.rows[1]: mx.contiguous(x[::-1])[::-1]})
    assert_same(op(**arguments | dict.fromkeys(op.rows, x)), expected, "the same array")
    assert_same(op(**arguments | dict.fromkeys(op.rows, x * 1)), expected, "in place")


@of_each_dtype(NUMBERS)
def test_shared_inputs_are_not_overwritten(instruction_set, op, dtype):
    arguments = op.arguments(dtype, 9, op.columns[0])
    for name in (name for name in op.rows if mx.issubdtype(arguments[name].dtype, mx.floating)):
        for rows in (slice(None), slice(3, None), slice(None, None, 2)):
            given, doubled = rows_of(op, arguments, rows), mx.contiguous(arguments[name][rows] * 2)
            expected = op(**given | {name: doubled})
            pending = arguments[name] * 2  # not donatable, because it is read below
            assert_same(op(**given | {name: pending[rows]}), expected, f"shared {name}")
            assert_same_bits(pending, arguments[name] * 2, f"{name} after the operation")
            in_place = op(**given | {name: (arguments[name] * 2)[rows]})
            assert_same(in_place, expected, f"{name} in place")


@of_each_dtype(NUMBERS)
def test_non_finite_inputs_stay_in_their_row(instruction_set, op, dtype):
    arguments = op.arguments(dtype, 3, op.columns[0])
    clean = [as_numpy(x) for x in op(**arguments)]
    names = [name for name in op.rows if mx.issubdtype(arguments[name].dtype, mx.floating)]
    for name, value in itertools.product(names, (mx.nan, mx.inf, -mx.inf)):
        changed = mx.array(arguments[name])
        changed[1, ..., -1] = value
        is_finite = op.name == "sigmoid_gate" and name == "gate" and not np.isnan(value)  # σ(∞) = 1
        for before, result in zip(clean, op(**arguments | {name: changed}), strict=True):
            after = as_numpy(result)
            affected = np.s_[1, -1:] if op.non_finite == "element" else np.s_[1]
            finite = np.isfinite(after[affected])
            assert is_finite or not (finite.any() if op.non_finite == "all" else finite.all()), (
                f"{value} in {name}"
            )
            after[affected] = before[affected]
            np.testing.assert_array_equal(after, before, f"{value} in {name}")
