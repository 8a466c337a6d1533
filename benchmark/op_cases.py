"""Cases of `benchmark.ops`: operations at Qwen3-0.6B's and 30B-A3B's shapes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

import mlx.core as mx
import numpy as np

from benchmark.model_costs import affine_bits
from tiny_llm import kernels, quantized_matmul
from tiny_llm.kernels.prepack import prepack_weight

E, I, V = 1024, 3072, 151_936
# Mixture of experts, as in Qwen3-30B-A3B: EXPERTS matrices of EXPERT_O × EXPERT_I, K per token.
EXPERTS, EXPERT_O, EXPERT_I, K = 128, 768, 2048, 8
H_q, H, D = 16, 8, 128
GROUP_SIZE, BITS = 128, 4
PAGE_SIZE = 128  # tokens
EPS = 1e-6
ops: Any = kernels

# Total size of the arrays that a case cycles through: larger than most CPU caches, so that they
# are read from memory, as in a model.
POOL_BYTES = 64_000_000


@dataclass(frozen=True)
class Case:
    """One operation at one shape."""

    name: str
    shape: str
    n_bytes: float  # minimum number of bytes read and written
    flops: float
    inputs: list[tuple[Any, ...]]  # arguments of `ours` and `mlx`, one tuple per call
    ours: Callable[..., Any]
    mlx: Callable[..., Any] | None = None  # None if MLX takes too long
    mlx_is_slow: bool = False  # whether to time `mlx` only once, on the first input


def quantized_matmul_cases() -> Iterator[Case]:
    """Decoding and prefill, prepacked; MLX's slow CPU kernel is timed for one row only."""
    mlx_qmm = partial(mx.quantized_matmul, group_size=GROUP_SIZE, bits=BITS)

    def multiply(a: mx.array, w: mx.array, s: mx.array, b: mx.array) -> mx.array:
        return quantized_matmul(s, b, GROUP_SIZE, BITS, a, w)

    for O, I_ in ((I, E), (E, I), (V, E)):
        weights = [
            (matrix, [prepacked_stack(x[None])[0] for x in matrix])
            for matrix in quantized_pool(O, I_)
        ]
        mx.eval(weights)
        for M in (1, 4, 16, 64, 512):
            if M * O > 10_000_000:
                continue
            a = random(M, I_)
            yield Case(
                "quantized_matmul",
                f"{M} × {O}×{I_}",
                O * I_ * affine_bits(BITS, GROUP_SIZE) / 8 + 2 * M * (O + I_),
                2.0 * M * O * I_,
                [(a, *layouts) for layouts in weights[: 2 if M >= 64 else None]],
                lambda a, _, prepacked: multiply(a, *prepacked),
                (lambda a, by_row, _: mlx_qmm(a, *by_row)) if M == 1 else None,
                mlx_is_slow=True,
            )


def grouped_quantized_matmul_cases() -> Iterator[Case]:
    """Gate or up projection with random routing and prepacked weights."""
    packed = mx.random.randint(0, 2**31 - 1, (EXPERTS, EXPERT_O, EXPERT_I * BITS // 32))
    scales = random(EXPERTS, EXPERT_O, EXPERT_I // GROUP_SIZE)
    by_row = (packed.astype(mx.uint32), scales, scales)
    weights = tuple(prepacked_stack(x) for x in by_row)
    for M in (1, 4, 16, 512):
        order = mx.argsort(mx.random.uniform(shape=(8, M, EXPERTS)), axis=-1)[..., :K]
        chosen = [experts.astype(mx.int32) for experts in order]
        read = mean(len(np.unique(np.array(experts))) for experts in chosen)
        matrix = EXPERT_O * EXPERT_I * affine_bits(BITS, GROUP_SIZE) / 8
        yield Case(
            "grouped_quantized_matmul",
            f"{M} × {K} of {EXPERTS}×{EXPERT_O}×{EXPERT_I}",
            read * matrix + 2 * M * (EXPERT_I + K * EXPERT_O),
            2.0 * M * K * EXPERT_O * EXPERT_I,
            [(random(M, EXPERT_I), experts) for experts in chosen[: 2 if M >= 64 else None]],
            lambda a, experts: ops.grouped_quantized_matmul(
                weights[1], weights[2], GROUP_SIZE, BITS, a, weights[0], experts
            ),
            (lambda a, experts: mlx_gather_qmm(a, *by_row, experts)) if M == 1 else None,
            mlx_is_slow=True,
        )


def prepacked_stack(x: mx.array) -> mx.array:
    """All experts' matrices, prepacked if this machine's kernels support that."""
    rows = kernels.prepack_rows()
    if not rows:
        return x
    tall = prepack_weight(x.reshape(-1, x.shape[-1]), rows)
    return tall.reshape(len(x), -1, *tall.shape[1:])


def mlx_gather_qmm(
    a: mx.array, w: mx.array, s: mx.array, b: mx.array, experts: mx.array
) -> mx.array:
    """MLX's grouped quantized matmul."""
    return mx.gather_qmm(
        a[:, None, None], w, s, b, rhs_indices=experts, group_size=GROUP_SIZE, bits=BITS
    )


def flash_attention_cases() -> Iterator[Case]:
    """Decoding with a short and a long context, a decoding batch, and prefill."""
    for B, L, S in ((1, 1, 128), (1, 1, 4096), (16, 1, 128), (1, 512, 512), (1, 512, 4096)):
        q, kv_bytes = random(B, H_q, L, D), 4 * B * H * S * D
        contexts = 1 if L > 1 else max(2, POOL_BYTES // kv_bytes)
        visible = L * S - L * (L - 1) / 2  # number of causal query-key pairs
        yield Case(
            "flash_attention",
            f"B={B} L={L} S={S}",
            kv_bytes + 4 * B * H_q * L * D,
            4.0 * B * H_q * D * visible,
            [(q, random(B, H, S, D), random(B, H, S, D)) for _ in range(contexts)],
            lambda q, k, v: ops.flash_attention(q, k, v, D**-0.5, True),
            lambda q, k, v: mx.fast.scaled_dot_product_attention(
                q, k, v, scale=D**-0.5, mask="causal"
            ),
            mlx_is_slow=L > 1,
        )


def paged_attention_cases() -> Iterator[Case]:
    """The contexts of `flash_attention_cases` in shuffled pages; MLX gathers the pages first."""
    for B, L, S in ((1, 1, 128), (1, 1, 4096), (16, 1, 128), (1, 512, 4096)):
        q, kv_bytes = random(B, H_q, L, D), 4 * B * H * S * D
        contexts = 1 if L > 1 else max(2, POOL_BYTES // kv_bytes)
        visible = L * S - L * (L - 1) / 2
        P = B * S // PAGE_SIZE
        table = mx.random.permutation(P).reshape(B, -1).astype(mx.int32)
        lengths = mx.full((B,), S, mx.int32)

        def gather(pages: mx.array, table: mx.array = table, S: int = S) -> mx.array:
            return pages[table].swapaxes(1, 2).reshape(-1, H, S, D)

        yield Case(
            "paged_attention",
            f"B={B} L={L} S={S}, pages of {PAGE_SIZE}",
            kv_bytes + 4 * B * H_q * L * D,
            4.0 * B * H_q * D * visible,
            [(q, random(P, H, PAGE_SIZE, D), random(P, H, PAGE_SIZE, D)) for _ in range(contexts)],
            lambda q, k, v, table=table, lengths=lengths: ops.paged_attention(
                q, k, v, table, lengths, D**-0.5, True
            ),
            lambda q, k, v, gather=gather: mx.fast.scaled_dot_product_attention(
                q, gather(k), gather(v), scale=D**-0.5, mask="causal"
            ),
            mlx_is_slow=L > 1,
        )


def rms_norm_cases() -> Iterator[Case]:
    """Norm before attention and before the MLP."""
    weight = random(E)
    for M in (1, 16, 512):
        yield Case(
            "rms_norm",
            f"{M}×{E}",
            4.0 * M * E,
            3.0 * M * E,
            [(random(M, E),)],
            lambda x: ops.rms_norm(x, weight, EPS),
            lambda x: mx.fast.rms_norm(x, weight, EPS),
        )


def add_rms_norm_cases() -> Iterator[Case]:
    """Residual connection and the following norm."""
    weight = random(E)
    for M in (1, 16, 512):
        yield Case(
            "add_rms_norm",
            f"{M}×{E}",
            8.0 * M * E,
            4.0 * M * E,
            [(random(M, E), random(M, E))],
            lambda x, y: ops.add_rms_norm(x, y, weight, EPS),
            lambda x, y: mx.fast.rms_norm(x + y, weight, EPS),
        )


def swiglu_cases() -> Iterator[Case]:
    """Activation of the MLP."""
    for M in (1, 16, 512):
        yield Case(
            "swiglu",
            f"{M}×{I}",
            6.0 * M * I,
            5.0 * M * I,
            [(random(M, I), random(M, I))],
            lambda gate, up: ops.swiglu(gate, up),
            lambda gate, up: gate * mx.sigmoid(gate) * up,
        )


def qk_norm_rope_cases() -> Iterator[Case]:
    """Norm and RoPE of the query heads."""
    weight = random(D)
    for L in (1, 512):
        frequency = 1e6 ** -(mx.arange(D // 2) / (D // 2))
        angle = (128 + mx.arange(L))[None, :, None] * frequency  # 1×L×D/2
        cos, sin = mx.cos(angle), mx.sin(angle)
        mx.eval(cos, sin)
        yield Case(
            "qk_norm_rope",
            f"L={L} H={H_q} D={D}",
            4.0 * L * H_q * D,
            9.0 * L * H_q * D,
            [(random(1, L, H_q, D), cos, sin)],
            lambda x, cos, sin: ops.qk_norm_rope(x, weight, EPS, cos, sin),
            lambda x, cos, sin: mx.fast.rope(
                mx.fast.rms_norm(x, weight, EPS).swapaxes(1, 2),
                D,
                traditional=False,
                base=1e6,
                scale=1.0,
                offset=128,
            ),
        )


def quantized_embedding_cases() -> Iterator[Case]:
    """Embedding lookup with dequantization."""
    w, s, b = quantized_pool(V, E)[0]
    for M in (1, 16, 512):
        yield Case(
            "quantized_embedding",
            f"{M} of {V}×{E}",
            M * E * (affine_bits(BITS, GROUP_SIZE) / 8 + 2),
            2.0 * M * E,
            [((mx.arange(M) * 7919 % V).astype(mx.int32),)],
            lambda ids: ops.quantized_embedding(ids, s, b, GROUP_SIZE, BITS, w),
            lambda ids: mx.dequantize(w[ids], s[ids], b[ids], group_size=GROUP_SIZE, bits=BITS),
        )


def matmul_cases() -> Iterator[Case]:
    """Unquantized weights: a · bᵀ."""
    pool = max(2, POOL_BYTES // (2 * I * E))
    weights = [random(I, E) for _ in range(pool)]
    for M in (1, 16, 512):
        a = random(M, E)
        yield Case(
            "matmul",
            f"{M} × {I}×{E}",
            2.0 * (I * E + M * (I + E)),
            2.0 * M * I * E,
            [(a, weight) for weight in weights[: 2 if M >= 64 else None]],
            lambda a, b: ops.matmul(a, b),
            lambda a, b: a @ b.T,
            mlx_is_slow=True,
        )


def topk_softmax_cases() -> Iterator[Case]:
    """Expert selection and routing weights from router logits."""

    def mlx(logits: mx.array) -> tuple[mx.array, mx.array]:
        p = mx.softmax(logits, axis=-1, precise=True)
        experts = mx.argpartition(-p, K - 1, axis=-1)[..., :K]
        weights = mx.take_along_axis(p, experts, axis=-1)
        return experts, weights / weights.sum(axis=-1, keepdims=True)

    for M in (1, 16, 512):
        yield Case(
            "topk_softmax",
            f"{K} of {M}×{EXPERTS}",
            2.0 * M * EXPERTS + 8.0 * M * K,
            2.0 * M * EXPERTS,
            [(random(M, EXPERTS),)],
            lambda logits: ops.topk_softmax(logits, K, True),
            mlx,
        )


def weighted_sum_cases() -> Iterator[Case]:
    """Weighted sum of the selected experts' outputs."""
    for M in (1, 16, 512):
        weights = random(M, K).astype(mx.float32)
        yield Case(
            "weighted_sum",
            f"{M}×{K}×{EXPERT_I}",
            2.0 * M * (K + 1) * EXPERT_I,
            2.0 * M * K * EXPERT_I,
            [(random(M, K, EXPERT_I), weights)],
            lambda x, weights: ops.weighted_sum(x, weights),
            lambda x, weights: (x * weights[..., None]).sum(axis=-2).astype(x.dtype),
        )


def add_lora_cases() -> Iterator[Case]:
    """Four rank-8 adapters, assigned to rows round-robin, on an MLP layer."""
    I, O, rank, num_adapters = 1024, 3072, 8, 4
    R = rank * num_adapters
    offsets = mx.array([rank * k for k in range(num_adapters + 1)], dtype=mx.int32)
    for M in (1, 16, 256):
        ids = mx.array([m % num_adapters for m in range(M)], dtype=mx.int32)
        selected = mx.arange(R)[None] // rank == ids[:, None]  # M×R

        def mlx(y: Any, x: Any, a: Any, b: Any, selected: mx.array = selected) -> mx.array:
            return y + mx.where(selected, x @ a.T, 0) @ b

        yield Case(
            "add_lora",
            f"{M}×{I}×{O}, rank {rank}",
            2.0 * (M * (I + 2 * O) + min(M, num_adapters) * rank * (I + O)),
            2.0 * M * rank * (I + O),
            [(random(M, O), random(M, I), random(R, I), random(R, O))],
            lambda y, x, a, b, ids=ids: ops.add_lora(y, x, a, b, offsets, ids),
            mlx,
        )


CASES: dict[str, Callable[[], Iterator[Case]]] = {
    "quantized_matmul": quantized_matmul_cases,
    "grouped_quantized_matmul": grouped_quantized_matmul_cases,
    "topk_softmax": topk_softmax_cases,
    "weighted_sum": weighted_sum_cases,
    "add_lora": add_lora_cases,
    "flash_attention": flash_attention_cases,
    "paged_attention": paged_attention_cases,
    "rms_norm": rms_norm_cases,
    "add_rms_norm": add_rms_norm_cases,
    "swiglu": swiglu_cases,
    "qk_norm_rope": qk_norm_rope_cases,
    "quantized_embedding": quantized_embedding_cases,
    "matmul": matmul_cases,
}


def random(*shape: int) -> mx.array:
    """Normally distributed bfloat16 array, evaluated."""
    x = mx.random.normal(shape).astype(mx.bfloat16)
    mx.eval(x)
    return x


def quantized_pool(O: int, I_: int) -> list[tuple[mx.array, mx.array, mx.array]]:
    """(weight, scales, biases) of O×I matrices, at least `POOL_BYTES` in total."""
    count = max(2, POOL_BYTES // (O * I_ // 2))
    pool = [
        mx.quantize(mx.full((O, I_), 0.01 * i, mx.bfloat16), group_size=GROUP_SIZE, bits=BITS)
        for i in range(1, count + 1)
    ]
    mx.eval(pool)
    return pool
