"""Contract table of invalid arguments: the error names the operation and the argument."""

from collections.abc import Callable

import mlx.core as mx
import pytest

from tests.ops.operations import FLOATS, OPERATIONS, Arguments, zeros
from tests.ops.quantized_matmul_problems import problem_in_floating_point
from tests.ops.recurrent_problems import Batch
from tiny_llm import flash_attention, kernels, paged_attention, paged_attention_varlen

int32 = mx.int32

QKV = {"query": mx.zeros((2, 4, 5, 16)), "key": mx.zeros((2, 2, 9, 16))}
QKV["value"] = QKV["key"]
PAGES = {
    "query": mx.zeros((2, 4, 3, 16)),
    "key_pages": mx.zeros((5, 2, 8, 16)),
    "value_pages": mx.zeros((5, 2, 8, 16)),
    "block_table": mx.zeros((2, 1), int32),
    "context_lens": mx.array([3, 3]),
    "page_size": 8,
}
RAGGED = PAGES | {"query": mx.zeros((3, 4, 16)), "cu_seqlens_q": mx.array([0, 1, 3])}
INT8 = mx.zeros((2, 1, 4, 12), mx.int8)  # head size 8 and a scale
IN_INT8 = PAGES | {"query": mx.zeros((1, 1, 1, 12)), "key_pages": INT8, "value_pages": INT8}
IN_INT8 |= {"block_table": mx.array([[0, 1]]), "context_lens": mx.array([5]), "page_size": 4}
WINDOW = r"window of at least 1, or 0 for none, got -1"
SINKS = [
    ({"sinks": sinks}, r"sinks in float32 of shape \(4\), got float")
    for sinks in (mx.zeros(2), mx.zeros(4, mx.float16), mx.zeros((4, 1)))
]
TOKENS = {"tokens": mx.zeros((5, 2, 8)), "slots": mx.zeros((5,), int32)}
STEP = Batch((2, 3), (0, 1), (0,) * 5).arrays
CONV = {"x": mx.zeros((5, 8)), "weight": mx.zeros((8, 4)), "conv_states": mx.zeros((3, 3, 8))}
DELTA = {"qkv": mx.zeros((5, 64)), "a": mx.zeros((5, 4)), "b": mx.zeros((5, 4)), "num_k_heads": 2}
DELTA |= {"A_log": mx.zeros(4), "dt_bias": mx.zeros(4), "states": mx.zeros((3, 4, 8, 8))}
FP4 = dict(
    zip(
        ("scales", "biases", "group_size", "bits", "a", "b"),
        problem_in_floating_point(2, 128, 64, 32, mx.bfloat16),
        strict=True,
    )
)
WIDE = {"bits": 8, "b": mx.concatenate([FP4["b"], FP4["b"]], axis=1)}
TABLE = {name: FP4[name] for name in ("scales", "biases", "group_size")}
TABLE |= {"ids": mx.arange(3), "weight": WIDE["b"], "bits": 8}
EACH = FP4 | {name: [FP4[name]] * 2 for name in ("scales", "biases", "b")}


CASES = []


def add_cases(op: Callable, valid: Arguments, *invalid: tuple[Arguments, str]) -> None:
    """Adds invalid changes of valid arguments, with the sentence that names them."""
    name = getattr(op, "name", getattr(op, "__name__", ""))
    CASES.extend(
        pytest.param(name, op, valid, *row, id=f"{name} {' '.join(row[0])}") for row in invalid
    )


for operation in OPERATIONS:
    add_cases(
        operation, operation.arguments(mx.float16, 2, operation.columns[1]), *operation.invalid
    )
add_cases(
    flash_attention,
    QKV,
    ({"mask": "Causal"}, 'expected mask None, "causal" or an array, got "Causal"'),
    ({"mask": mx.zeros((5, 9), int32)}, "expected mask in bool, float32.*, got int32"),
    ({"mask": mx.zeros((5, 8))}, r"broadcastable to \(2,4,5,9\), got shape \(5,8\)"),
    ({"mask": mx.zeros((1, 2, 4, 5, 9))}, "broadcastable"),
    ({"query": mx.zeros((2, 4, 5, 16), int32)}, "expected query in float32.*, got int32"),
    ({"key": zeros(2, 2, 9, 16)}, "in the dtype of query, float32, got"),
    ({"value": zeros(2, 2, 9, 16, dtype=mx.bfloat16)}, "dtype of query, float32, got"),
    ({"query": mx.zeros((5, 16))}, "expected query of shape N..×H_q×L×D, got shape"),
    ({"query": mx.array(1.0)}, "expected query of shape N..×H_q×L×D, got shape"),
    ({"key": mx.zeros((2, 9, 16))}, "expected key with the 4 dimensions of query"),
    ({"value": mx.zeros((2, 2, 8, 16))}, "expected value of the shape of key"),
    ({"query": mx.zeros((3, 4, 5, 16))}, r"expected key of shape \(3,2,9,16\)"),
    ({"query": mx.zeros((2, 4, 5, 15))}, r"expected key of shape \(2,2,9,15\)"),
    ({"query": mx.zeros((2, 3, 5, 16))}, "to divide the query heads, got 2 and 3"),
    (dict.fromkeys(("key", "value"), mx.zeros((2, 0, 9, 16))), "query heads, got 0 and 4"),
    ({"context_lens": [9]}, r"expected context_lens of shape \(2\).* got \(1\)"),
    ({"context_lens": [9, 10]}, r"context_lens from 0 to 9.* got \[9, 10\]"),
    ({"context_lens": [-1, 3]}, r"context_lens from 0 to 9.* got \[-1, 3\]"),
    ({"context_lens": mx.array([9.0, 9.0])}, "expected context_lens in int32, got float32"),
    (
        {name: array[0] for name, array in QKV.items()} | {"context_lens": [3]},
        "query with 4 dimensions if context_lens is given",
    ),
    *(
        (dict.fromkeys(QKV, mx.zeros((1, 1, 2, D))), f"a head size from 1 to 512, got {D}")
        for D in (0, 513)
    ),
)
add_cases(
    kernels.flash_attention,
    QKV,
    *SINKS,
    ({"causal": True, "mask": zeros(3, 3)}, "either causal or a mask array, got both"),
)
add_cases(
    paged_attention,
    PAGES,
    ({"query": mx.zeros((2, 4, 16))}, "expected query B×H_q×L×D, got shape"),
    ({"query": mx.zeros((2, 4, 3, 16), int32)}, "expected query in float32.*, got int32"),
    ({"query": mx.zeros((2, 4, 3, 15))}, "expected pages of head size 15, .* got shape"),
    ({"query": mx.zeros((2, 3, 3, 16))}, "to divide the query heads, got 2 and 3"),
    ({"query": mx.zeros((3, 4, 3, 16))}, "expected block_table of 3 rows"),
    ({"key_pages": zeros(5, 2, 8, 16)}, "in the dtype of query, float32"),
    ({"key_pages": mx.zeros((5, 2, 7, 16))}, "page_size 8, got shape"),
    ({"value_pages": mx.zeros((4, 2, 8, 16))}, "value_pages of the shape of key_pages"),
    ({"block_table": mx.zeros((2, 1))}, "expected block_table in int32, got float32"),
    ({"block_table": mx.zeros((2,), int32)}, "expected block_table B×max_pages, got"),
    ({"context_lens": mx.array([3.0, 3.0])}, "expected context_lens in int32, got float32"),
    ({"context_lens": mx.array([3])}, r"context_lens of shape \(2\), got \(1\)"),
    ({"block_table": [[0], [1]], "context_lens": [3, 9]}, "context_lens from 0 to 8.* 9"),
    ({"block_table": [[0], [5]], "context_lens": [3, 3]}, "page ids from 0 to 4, got 5"),
    ({"block_table": [[0], [-1]], "context_lens": [3, 1]}, "page ids from 0 to 4, got -1"),
    ({"mask": mx.zeros((3, 3))}, 'expected mask None or "causal"'),
    ({"mask": "Causal"}, "expected mask None or \"causal\", got 'Causal'"),
    ({"mask": "causal", "window": -1}, WINDOW),
    ({"mask": None, "window": 4}, "causal mask with a window of 4"),
    (
        {
            "block_table": [[-1, -1, 3], [0, 1, 2]],
            "context_lens": [17, 17],
            "mask": "causal",
            "window": 4,
        },
        "page ids from 0 to",
    ),
)
add_cases(
    paged_attention,
    IN_INT8,
    ({}, "pages of head size 12 and a scale of 4 bytes"),
    ({"value_pages": INT8.astype(mx.float32)}, "in the dtype of query, float32, or in int8"),
)
add_cases(
    kernels.paged_attention,
    {name: value for name, value in PAGES.items() if name != "page_size"},
    *SINKS,
    ({"window": -1}, WINDOW),
    ({"causal": False, "window": 4}, "causal mask with a window of 4"),
)
add_cases(
    paged_attention_varlen,
    RAGGED,
    ({"query": mx.zeros((1, 3, 4, 16))}, "expected query T×H_q×D, got shape"),
    ({"cu_seqlens_q": mx.array([0, 3])}, r"cu_seqlens_q of shape \(3\), got \(2\)"),
    ({"cu_seqlens_q": mx.array([0.0, 1, 3])}, "cu_seqlens_q in int32, got float32"),
    *(
        ({"cu_seqlens_q": ends}, "cu_seqlens_q ascending from 0 to 3")
        for ends in ([0, 2, 4], [0, 4, 3], [1, 2, 3], [])
    ),
    ({"page_size": 16}, "page_size 16"),
    ({"window": -1}, WINDOW),
)
add_cases(
    kernels.cache_write,
    {"buffer": mx.zeros((2, 3, 9, 5)), "tokens": mx.zeros((2, 3, 2, 5)), "offsets": [0, 1]},
    ({"buffer": mx.zeros((2, 9, 5))}, "expected a buffer B×H×C×D"),
    ({"tokens": zeros(2, 3, 2, 5)}, "in the dtype of the buffer"),
    ({"tokens": mx.zeros((2, 3, 2, 6))}, "expected tokens of shape"),
    *(({"offsets": offsets}, "offsets from 0 to 7") for offsets in ([0, 8], [0, -2])),
    *(
        ({"offsets": offsets}, "expected 2 offsets, one for each sequence, got 1")
        for offsets in ([0], mx.array([0], int32))
    ),
    *(
        ({"offsets": offsets}, "expected offsets in int32, one for each sequence")
        for offsets in (mx.array([0, 1])[None], mx.array([0.0, 1.0]))
    ),
)
add_cases(
    kernels.paged_cache_write,
    {"pages": mx.zeros((3, 2, 4, 8)), **TOKENS},
    ({"pages": mx.zeros((3, 4, 8))}, "expected pages P×H×page_size×D, got shape"),
    ({"pages": mx.zeros((3, 2, 4, 8), int32)}, "expected pages in float32.*, got int32"),
    ({"tokens": zeros(5, 2, 8)}, "in the dtype of the pages, float32, got"),
    ({"tokens": mx.zeros((5, 8))}, "expected tokens T×H×D or B×H×L×D, got shape"),
    ({"tokens": mx.zeros((5, 3, 8))}, "expected tokens of 2 heads of size 8"),
    ({"tokens": mx.zeros((5, 2, 9))}, "expected tokens of 2 heads of size 8"),
    ({"slots": mx.zeros((5,))}, "expected slots in int32, got float32"),
    ({"slots": mx.zeros((4,), int32)}, r"expected slots of shape \(5\).* got \(4\)"),
    ({"slots": mx.zeros((1, 5), int32)}, r"expected slots of shape \(5\).* got \(1,5\)"),
    ({"pages": INT8}, "tokens of 1 heads of size 8"),
    ({"pages": INT8, "tokens": mx.zeros((5, 1, 8), mx.int8)}, f"tokens in {FLOATS}"),
)
add_cases(
    kernels.causal_conv1d,
    CONV | STEP,
    ({"x": mx.zeros((5, 8), int32)}, f"expected x in {FLOATS}"),
    ({"x": mx.zeros((1, 5, 8))}, "expected x T×C, got shape"),
    ({"weight": mx.zeros((7, 4))}, "expected weight 8×K, one row per channel"),
    ({"weight": mx.zeros((8, 1))}, "expected a convolution width K from 2 to 8, got 1"),
    ({"weight": zeros(8, 4)}, "expected weight in float32 or the dtype of x"),
    ({"conv_states": mx.zeros((3, 4, 8))}, "expected conv_states S×3×8, got shape"),
    ({"conv_states": zeros(3, 3, 8)}, "conv_states in the dtype of x"),
    ({"cu_seqlens": mx.zeros((3,))}, "in int32, got float32, int32 and int32"),
    ({"read_slots": mx.zeros((1, 2), int32)}, "one slot per sequence"),
    ({"cu_seqlens": mx.zeros((2,), int32)}, r"expected cu_seqlens of shape \(3\)"),
    ({"write_slots": mx.zeros((4,), int32)}, r"expected write_slots of shape \(5\)"),
)
add_cases(
    kernels.gated_delta_rule,
    DELTA | STEP,
    ({"states": mx.zeros((3, 8, 4))}, "expected states S×H_v×D_k×D_v, got shape"),
    ({"states": mx.zeros((3, 4, 257, 8))}, "expected key heads of size at most 256"),
    ({"num_k_heads": 3}, "to divide the value heads of the states, 4, got 3"),
    ({"num_k_heads": 0}, "to divide the value heads of the states, 4, got 0"),
    ({"qkv": zeros(5, 64)}, "expected qkv in float32, got float16"),
    ({"A_log": zeros(4)}, "expected A_log in float32, got float16"),
    ({"qkv": mx.zeros((5, 63))}, "expected qkv T×64 for the heads of the states"),
    ({"b": zeros(5, 4)}, f"expected a and b both in {FLOATS}"),
    ({"a": mx.zeros((5, 2))}, r"expected a and b of shape \(5,4\), got \(5,2\)"),
    ({"dt_bias": mx.zeros((2,))}, r"expected A_log and dt_bias of shape \(4\)"),
    ({"write_slots": mx.zeros((4,), int32)}, r"expected write_slots of shape \(5\)"),
)
add_cases(kernels.quantized_matmul, FP4, (WIDE, "expected biases for 8 bits, got None"))
add_cases(kernels.quantized_embedding, TABLE, ({}, "expected biases for 8 bits, got None"))
add_cases(
    kernels.multi_quantized_matmul,
    EACH,
    ({"biases": [None, FP4["scales"]]}, "expected biases for either all matrices or none"),
    ({"activation_bits": 4}, "expected activation_bits 16 or 8, got 4"),
)


@pytest.mark.parametrize(("name", "op", "valid", "changes", "message"), CASES)
def test_errors_name_the_argument(name, op, valid, changes, message):
    with pytest.raises(ValueError, match=rf"\[{name}\] .*{message}"):
        op(**valid | changes)
