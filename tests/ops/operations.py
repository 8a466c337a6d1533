"""Contract table of the row operations: arguments, rows, invalid calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from tests.support import DTYPES, random
from tiny_llm import kernels
from tiny_llm.kernels.prepack import prepack_weight

Arguments = dict[str, Any]
EPS = 1e-6
HALVES = (mx.float16, mx.bfloat16)
FLOATS = "float32, float16 or bfloat16"


@dataclass(frozen=True)
class Operation:
    """An operation of `tiny_llm.kernels` whose output rows depend on their own input rows only.

    Attributes:
        arguments: valid arguments, given the dtype, the number of rows M and the row length I.
        rows: arguments with an entry per row in their first dimension.
        invalid: changes to the arguments of two float16 rows, and the sentence that names them.
        columns: row length I of valid and of invalid calls.
        non_finite: outputs of a row that a non-finite input makes non-finite: the "element" in its
            place, "any" or "all"; "" if inputs are not numbers or NaN is ordered.
        has_empty_rows: whether a row may have no elements.
        any_shape: whether rows may have any number of leading dimensions.
        gpu_ulps: largest difference of the Metal kernel from the CPU's; None without a kernel.
        options: further arguments of every call.
        variant: distinguishes entries of one operation, unless their options do.
    """

    name: str
    arguments: Callable[[mx.Dtype, int, int], Arguments]
    rows: Sequence[str]
    invalid: Sequence[tuple[Arguments, str]] = ()
    columns: tuple[int, int] = (131, 8)
    non_finite: str = "any"
    has_empty_rows: bool = True
    any_shape: bool = True
    dtypes: Sequence[mx.Dtype] = tuple(DTYPES)
    gpu_ulps: float | None = None
    options: Arguments = field(default_factory=dict)
    variant: str = ""

    @property
    def label(self) -> str:
        return "-".join(filter(None, [self.name, *map(str, self.options.values()), self.variant]))

    def __call__(self, stream: Any = None, **arguments: Any) -> tuple[mx.array, ...]:
        """Evaluated results."""
        results = getattr(kernels, self.name)(**self.options | arguments, stream=stream)
        mx.eval(results)
        return tuple(results) if isinstance(results, tuple | list) else (results,)


def zeros(*shape: int, dtype: mx.Dtype = mx.float16) -> mx.array:
    return mx.zeros(shape, dtype)


def quantized(
    O: int, I: int, dtype: mx.Dtype, bits: int = 4, experts: Sequence[int] = ()
) -> Arguments:
    b, scales, biases = mx.quantize(random(*experts, O, I, dtype=dtype), 64, bits)
    return {"scales": scales, "biases": biases, "group_size": 64, "bits": bits, "b": b}


def embedding(V: int, M: int, I: int, dtype: mx.Dtype) -> Arguments:
    table = quantized(V, I, dtype)
    return {"ids": mx.random.randint(-V, V, (M,)), "weight": table.pop("b"), **table}


def several_quantized(I: int, dtype: mx.Dtype) -> Arguments:
    matrices = [quantized(O, I, dtype) for O in (203, 33)]
    parts = {name: [m[name] for m in matrices] for name in ("scales", "biases", "b")}
    return {**matrices[0], **parts}


def prepacked(arguments: Arguments) -> Arguments:
    """Interleaves the weights' rows for kernels that read them so."""
    rows = kernels.prepack_rows()

    def interleaved(x: mx.array) -> mx.array:  # all experts as one matrix
        tall = prepack_weight(x.reshape(-1, x.shape[-1]), rows)
        return tall.reshape(*x.shape[:-2], -1, *tall.shape[1:])

    names = [name for name in ("scales", "biases", "b", "weight") if rows and name in arguments]
    return arguments | {name: interleaved(arguments[name]) for name in names}


def adapter_ids(M: int) -> mx.array:
    """No adapter, four adapters, an unknown one."""
    return mx.array([row % 6 - 1 for row in range(M)], dtype=mx.int32)


INVALID_MATRIX = [
    ({"bits": 3}, "expected bits 4 or 8, got 3"),
    ({"group_size": 16}, "expected group_size 32, 64 or 128, got 16"),
    ({"scales": zeros(203, 3)}, "expected scales of shape"),
    ({"biases": zeros(203, 3)}, "expected biases of shape"),
    ({"biases": zeros(203, 2, dtype=mx.bfloat16)}, "expected biases in the dtype of scales"),
]

QUANTIZED: dict[str, Any] = {"columns": (256, 128), "non_finite": "all", "dtypes": HALVES}

OPERATIONS = [
    *(
        Operation(
            "swiglu",
            lambda dtype, M, I, scale=scale: {
                "gate": random(M, I, dtype=dtype, scale=4 * scale),
                "up": random(M, I, dtype=dtype, scale=scale),
            },
            rows=("gate", "up"),
            invalid=[
                ({"gate": zeros(2, 8, dtype=mx.int32)}, f"expected gate in {FLOATS}"),
                ({"gate": zeros()}, "at least one dimension"),
                (
                    {"up": mx.zeros((2, 8))},
                    "expected up in the dtype of gate, float16, got float32",
                ),
                ({"up": zeros(1, 8)}, "expected up of the shape of gate"),
                (
                    {"activation": "relu"},
                    'expected activation "silu", "gelu_tanh" or "swigluoai", got "relu"',
                ),
            ],
            non_finite="" if "swigluoai" in options.values() else "element",
            gpu_ulps=2,
            options=options,
        )
        for options, scale in (
            ({}, 1),
            ({"activation": "gelu_tanh"}, 1),
            ({"activation": "swigluoai"}, 3),  # gpt-oss's function clamps its inputs at 7
        )
    ),
    Operation(
        "add_bias",
        lambda dtype, M, I: {"x": random(M, I, dtype=dtype), "bias": random(I, dtype=dtype)},
        rows=("x",),
        invalid=[
            ({"x": zeros(2, 8, dtype=mx.int32)}, f"expected x in {FLOATS}"),
            ({"x": zeros()}, "at least one dimension"),
            ({"bias": mx.zeros((8,))}, "expected bias in the dtype of x, float16, got float32"),
            ({"bias": zeros(7)}, r"expected bias of shape \(8\)"),
            ({"bias": zeros(1, 8)}, r"expected bias of shape \(8\)"),
            ({"experts": zeros(2, dtype=mx.uint32)}, r"of shape \(X,8\) with experts, got \(8\)"),
            (
                {"bias": zeros(3, 8), "experts": zeros(2, dtype=mx.int32)},
                "experts in uint32, one for each row of x .*, got int32",
            ),
            (
                {"bias": zeros(3, 8), "experts": zeros(3, dtype=mx.uint32)},
                r"got uint32 of shape \(3\)",
            ),
        ],
        non_finite="element",
        gpu_ulps=0,
    ),
    Operation(
        "add_bias",
        lambda dtype, M, I: {
            "x": random(M, I, dtype=dtype),
            "bias": random(5, I, dtype=dtype),
            "experts": mx.random.randint(0, 5, (M,), mx.uint32),
        },
        rows=("x", "experts"),
        non_finite="element",
        any_shape=False,
        variant="experts",
    ),
    Operation(
        "scaled_sum",
        lambda dtype, M, I: {**{x: random(M, I, dtype=dtype) for x in ("x", "y")}, "scale": 0.3},
        rows=("x", "y"),
        invalid=[
            ({"x": zeros(2, 8, dtype=mx.int32)}, f"expected x in {FLOATS}"),
            ({"x": zeros()}, "at least one dimension"),
            ({"y": mx.zeros((2, 8))}, "expected y in the dtype of x, float16, got float32"),
            ({"y": zeros(8)}, r"expected y of the shape of x, \(2,8\), got \(8\)"),
        ],
        non_finite="element",
        gpu_ulps=0,
    ),
    *(
        Operation(
            name,
            lambda dtype, M, I, names=names: {
                **{x: random(M, I, dtype=dtype) for x in names},
                "weight": (1 + 0.3 * random(I)).astype(dtype),
                "eps": EPS,
            },
            rows=names,
            invalid=[
                ({"x": zeros(2, 8, dtype=mx.int32)}, f"expected x in {FLOATS}, got int32"),
                ({"x": zeros()}, "at least one dimension"),
                ({"weight": zeros(9)}, r"expected weight of shape \(8\)"),
                ({"weight": zeros(1, 8)}, r"expected weight of shape \(8\)"),
                (
                    {"weight": zeros(8, dtype=mx.bfloat16)},
                    "expected weight in float32 or the dtype of x, float16, got bfloat16",
                ),
                *more,
            ],
            gpu_ulps=4,
        )
        for name, names, more in (
            ("rms_norm", ("x",), []),
            (
                "add_rms_norm",
                ("x", "y"),
                [
                    ({"y": zeros(1, 8)}, "expected y of the shape of x"),
                    ({"y": zeros(2, 8, dtype=mx.bfloat16)}, "expected y in the dtype of x"),
                ],
            ),
        )
    ),
    Operation(
        "gated_rms_norm",
        lambda dtype, M, I: {
            "o": random(M, I),
            "z": random(M, I, dtype=dtype),
            "weight": random(I),
            "eps": EPS,
        },
        rows=("o", "z"),
        invalid=[
            ({"o": zeros(2, 8)}, "expected o in float32, got float16"),
            ({"z": zeros(2, 8, dtype=mx.int32)}, f"expected z in {FLOATS}"),
            ({"z": zeros(1, 8)}, "expected z of the shape of o"),
            ({"weight": mx.zeros((7,))}, r"expected weight of shape \(8\)"),
            ({"weight": zeros(8, dtype=mx.bfloat16)}, "float32 or the dtype of z, float16, got"),
        ],
        gpu_ulps=16,
    ),
    Operation(
        "sigmoid_gate",
        lambda dtype, M, I: {
            "x": random(M, I, dtype=dtype),
            "gate": random(M, I, dtype=dtype, scale=4),
        },
        rows=("x", "gate"),
        invalid=[
            ({"x": zeros(2, 8, dtype=mx.int32)}, f"expected x in {FLOATS}"),
            ({"x": zeros()}, "at least one dimension"),
            ({"gate": mx.zeros((2, 8))}, "expected gate in the dtype of x, float16, got float32"),
            ({"gate": zeros(1, 8)}, r"expected gate of the shape of x, .*or \(2,1\)"),
        ],
        non_finite="element",
        gpu_ulps=16,
    ),
    Operation(
        "qk_norm_rope",
        lambda dtype, M, I: {
            "x": random(M, 3, 2, I, dtype=dtype),
            "weight": random(I, dtype=dtype),
            "eps": EPS,
            "cos": random(M, 3, I // 2),
            "sin": random(M, 3, I // 2),
        },
        rows=("x", "cos", "sin"),
        invalid=[
            ({"x": zeros(2, 3, 2, 8, dtype=mx.int32)}, f"expected x in {FLOATS}"),
            ({"x": zeros(6, 2, 8)}, "expected x with 4 dimensions"),
            ({"x": zeros(2, 3, 2, 7)}, "expected an even head size"),
            ({"weight": zeros(4)}, r"expected weight of shape \(8\)"),
            (
                {"weight": zeros(8, dtype=mx.bfloat16)},
                "expected weight in float32 or the dtype of x, float16, got bfloat16",
            ),
            ({"cos": zeros(2, 3, 4)}, "expected cos and sin in float32"),
            ({"cos": mx.zeros((2, 1, 4))}, r"expected cos of shape \(2,3,W\) or \(1,3,W\)"),
            ({"cos": mx.zeros((2, 3, 5))}, r"W from 1 to 4, got \(2,3,5\)"),
            ({"cos": mx.zeros((2, 3, 0))}, r"W from 1 to 4, got \(2,3,0\)"),
            ({"sin": mx.zeros((1, 3, 4))}, "expected sin of the shape of cos"),
        ],
        columns=(66, 8),
        any_shape=False,
        gpu_ulps=4,
    ),
    Operation(
        "argmax",
        lambda dtype, M, I: {"x": random(M, I, dtype=dtype)},
        rows=("x",),
        invalid=[
            ({"x": mx.array([1, 2])}, f"expected x in {FLOATS}"),
            ({"x": zeros(3, 0)}, "at least one element in its last dimension"),
            ({"x": zeros()}, "at least one element in its last dimension"),
        ],
        non_finite="",
    ),
    Operation(
        "topk_softmax",
        lambda dtype, M, I: {"logits": random(M, I, dtype=dtype), "k": 5, "normalize": True},
        rows=("logits",),
        invalid=[
            ({"logits": zeros(2, 8, dtype=mx.int32)}, f"expected logits in {FLOATS}"),
            ({"logits": zeros()}, "expected logits N..×X, got a scalar"),
            *(
                ({"k": k}, f"expected k from 1 to 8, the number of experts, got {k}")
                for k in (0, -1, 9)
            ),
            ({"expert_scales": mx.zeros(7)}, r"expected expert_scales in float32, of shape \(8\)"),
        ],
        non_finite="",
    ),
    Operation(
        "weighted_sum",
        lambda dtype, M, I: {
            "x": random(M, 3, I, dtype=dtype),
            "weights": random(M, 3),
            "base": random(M, I, dtype=dtype),
        },
        rows=("x", "weights", "base"),
        invalid=[
            ({"weights": mx.zeros((2, 4))}, r"expected weights of shape \(2,3\), got \(2,4\)"),
            ({"weights": zeros(2, 3)}, "expected weights in float32, got .*float16"),
            ({"base": zeros(2, 3, 8)}, r"expected base of shape \(2,8\), got \(2,3,8\)"),
            ({"base": mx.zeros((2, 8))}, "expected base in the dtype of x, .*float16, got .*32"),
            ({"x": zeros(8)}, r"expected x N..×K×E, got shape \(8\)"),
            ({"x": zeros(2, 3, 8, dtype=mx.int32)}, f"expected x in {FLOATS}"),
        ],
    ),
    Operation(
        "add_lora",
        lambda dtype, M, I: {
            "y": random(M, 203, dtype=dtype),
            "x": random(M, I, dtype=dtype),
            "lora_a": random(21, I, dtype=dtype),
            "lora_b": random(21, 203, dtype=dtype),
            "rank_offsets": mx.array([0, 4, 4, 20, 21], dtype=mx.int32),
            "adapter_ids": adapter_ids(M),
        },
        rows=("y", "x", "adapter_ids"),
        invalid=[
            ({"y": zeros(2, 203, dtype=mx.int32)}, f"expected y in {FLOATS}"),
            ({"x": zeros(3, 8)}, r"expected y N..×O and x N..×I, got shapes \(2,203\) and \(3,8\)"),
            ({"x": zeros(8)}, "expected y N..×O and x N..×I"),
            ({"lora_a": zeros(21, 5)}, r"expected lora_a of shape R×8, got \(21,5\)"),
            ({"lora_b": zeros(2, 203)}, r"expected lora_b of shape \(21,203\), got \(2,203\)"),
            ({"lora_b": mx.zeros((21, 203))}, "in the dtype of y, .*float16, got .*float32"),
            ({"rank_offsets": mx.zeros(2)}, r"expected rank_offsets of shape \(A\+1\), int32"),
            (
                {"adapter_ids": mx.zeros(3, mx.int32)},
                r"expected adapter_ids of shape \(2\), int32, got \(3\)",
            ),
        ],
    ),
    Operation(
        "matmul",
        lambda dtype, M, I: {"a": random(M, I, dtype=dtype), "b": random(203, I, dtype=dtype)},
        rows=("a",),
        invalid=[
            ({"a": zeros(2, 8, dtype=mx.int32)}, f"expected a in {FLOATS}"),
            ({"a": zeros()}, "at least one dimension"),
            ({"a": zeros(2, 7)}, "expected b with the row length of a, 7"),
            ({"b": mx.zeros((3, 8))}, "expected b in the dtype of a, float16, got float32"),
            ({"b": zeros(1, 3, 8)}, "expected b with 2 dimensions"),
        ],
        non_finite="all",
    ),
    Operation(
        "quantized_matmul",
        lambda dtype, M, I: {"a": random(M, I, dtype=dtype), **quantized(203, I, dtype)},
        rows=("a",),
        invalid=[
            *INVALID_MATRIX,
            ({"transpose_b": False}, "expected transpose_b=True"),
            ({"group_size": 128}, "expected scales of shape"),
            ({"bits": 8}, "expected b of shape"),
            ({"a": mx.zeros((2, 128))}, "expected a in float16 or bfloat16, got float32"),
            ({"a": zeros(2, 100)}, "positive multiple of group_size"),
            ({"a": zeros(2, 192)}, "expected b of shape"),
            ({"a": zeros()}, "at least one dimension"),
            ({"b": zeros(203, 16, dtype=mx.int32)}, "expected b in uint32, got int32"),
            ({"b": zeros(203, dtype=mx.uint32)}, "expected b with 2 dimensions"),
            ({"scales": mx.zeros((203, 2))}, "expected scales in float16 or bfloat16, got float32"),
        ],
        **QUANTIZED,
    ),
    Operation(
        "quantized_matmul",
        lambda dtype, M, I: {"a": random(M, I, dtype=dtype), **quantized(203, I, dtype, bits=8)},
        rows=("a",),
        **QUANTIZED,
        variant="8 bits",
    ),
    Operation(
        "multi_quantized_matmul",
        lambda dtype, M, I: {"a": random(M, I, dtype=dtype), **several_quantized(I, dtype)},
        rows=("a",),
        invalid=[
            ({"scales": [], "biases": [], "b": []}, "expected at least one matrix, got none"),
            ({"scales": [zeros(203, 2)]}, "as many scales and biases as matrices, 2, got 1 and 2"),
            ({"scales": [zeros(33, 2), zeros(203, 2)]}, "expected scales of shape"),
        ],
        **QUANTIZED,
    ),
    Operation(
        "grouped_quantized_matmul",
        lambda dtype, M, I: {
            "a": random(M, I, dtype=dtype),
            "experts": mx.random.randint(0, 4, (M, 2)),
            **quantized(203, I, dtype, experts=[4]),
        },
        rows=("a", "experts"),
        invalid=[
            ({"scales": zeros(3, 203, 2)}, "expected scales for 4 experts, like b, got shape"),
            ({"biases": zeros(4, 7, 2)}, "expected biases of shape"),
            (
                {"b": zeros(203, 16, dtype=mx.uint32)},
                "expected b with 3 dimensions, or 4 if it is prepacked",
            ),
            ({"experts": mx.zeros((2, 2))}, "expected experts in int32 or uint32, got .*float32"),
            ({"experts": mx.array(0)}, "expected experts N..×K, got a scalar"),
            ({"a": zeros(3, 128)}, "expected a N..×I or N..×K×I for experts N..×K of shape"),
            ({"a": zeros(2, 3, 128)}, "expected a N..×I or N..×K×I"),
        ],
        **QUANTIZED,
    ),
    Operation(
        "quantized_embedding",
        lambda dtype, M, I: embedding(203, M, I, dtype),
        rows=("ids",),
        invalid=[
            *INVALID_MATRIX,
            ({"ids": mx.zeros((2,))}, "expected ids in int32 or uint32, got float32"),
            ({"weight": zeros(203, 16, dtype=mx.int32)}, "expected weight in uint32, got int32"),
            ({"weight": zeros(16, dtype=mx.uint32)}, "expected weight with 2 dimensions"),
            ({"weight": zeros(203, 0, dtype=mx.uint32)}, "positive multiple of group_size, 64"),
            ({"weight": zeros(203, 4, dtype=mx.uint32)}, "positive multiple of group_size, 64"),
            ({"weight": zeros(71, 16, dtype=mx.uint32)}, "expected scales of shape"),
            ({"scales": zeros(203, 2, dtype=mx.int32)}, f"expected scales in {FLOATS}"),
        ],
        columns=(256, 128),
        non_finite="",
    ),
    Operation(
        "quantized_matmul",
        lambda dtype, M, I: prepacked({"a": random(M, I, dtype=dtype), **quantized(192, I, dtype)}),
        rows=("a",),
        **QUANTIZED,
        variant="prepacked",
    ),
    Operation(
        "grouped_quantized_matmul",
        lambda dtype, M, I: prepacked(
            {
                "a": random(M, I, dtype=dtype),
                "experts": mx.random.randint(0, 4, (M, 2)),
                **quantized(64, I, dtype, experts=[4]),
            }
        ),
        rows=("a", "experts"),
        **QUANTIZED,
        variant="prepacked",
    ),
    Operation(
        "quantized_embedding",
        lambda dtype, M, I: prepacked(embedding(192, M, I, dtype)),
        rows=("ids",),
        columns=(256, 128),
        non_finite="",
        dtypes=HALVES,
        variant="prepacked",
    ),
    Operation(
        "flash_attention",
        lambda dtype, M, I: {
            "query": random(M, 4, 5, I, dtype=dtype),
            **{name: random(M, 2, 9, I, dtype=dtype) for name in ("key", "value")},
            "causal": True,
        },
        rows=("query", "key", "value"),
        columns=(40, 16),
        has_empty_rows=False,
    ),
    Operation(
        "paged_attention",
        lambda dtype, M, I: {
            "query": random(M, 4, 3, I, dtype=dtype),
            **{name: random(7, 2, 8, I, dtype=dtype) for name in ("key_pages", "value_pages")},
            "block_table": mx.random.randint(0, 7, (M, 2)),
            "context_lens": mx.random.randint(3, 17, (M,)),
        },
        rows=("query", "block_table", "context_lens"),
        columns=(40, 16),
        has_empty_rows=False,
        any_shape=False,
    ),
]
