"""Week 6, day 2, optional: tensor parallelism with shards and collectives."""

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from tests.models.support import FAMILIES, MIXTURE
from tests.support import assert_close, assert_equal, assert_same_bits, random
from tests.week_6.threaded_ranks import Rank
from tiny_llm.models.checkpoint.sharding import RankShard
from tiny_llm.models.families.linear import AdapterBatch
from tiny_llm.models.families.registry import read_config
from tiny_llm.models.parallel.decoder import TensorParallelBlock
from tiny_llm.models.parallel.layers import (
    MAX_MESSAGE_BYTES,
    ParallelLMHead,
    VocabParallelEmbedding,
    all_reduce,
)

pytestmark = pytest.mark.usefixtures("on_cpu")

LLAMA = read_config({**FAMILIES["llama"], "intermediate_size": 256})
TIMEOUT = 60  # seconds within which two ranks must start, generate and exit


def parts_of(size: int, config: Any = LLAMA, **changes: Any) -> list[RankShard]:
    """Each rank's shard of a model, by default with 4 query and 2 KV heads."""
    return [RankShard(replace(config, **changes), rank, size) for rank in range(size)]


def evaluated(*arrays: mx.array) -> list[mx.array]:
    """Evaluates the arrays: ranks are threads, which cannot share lazy graphs."""
    mx.eval(arrays)
    return list(arrays)


@pytest.mark.parametrize(
    ("vocab_size", "size", "expected"),
    [
        (10, 2, [range(5), range(5, 10)]),
        (10, 4, [range(3), range(3, 6), range(6, 9), range(9, 10)]),
        (4097, 2, [range(2049), range(2049, 4097)]),
    ],
)
def test_task_1_vocabulary_range_of_a_rank(vocab_size, size, expected):
    assert_equal([part.vocab_range for part in parts_of(size, vocab_size=vocab_size)], expected)


@pytest.mark.parametrize(
    ("H_q", "H", "size"), [(16, 8, 2), (16, 8, 8), (4, 2, 4), (32, 2, 8), (8, 1, 4)]
)
def test_task_1_rank_owns_kv_heads_of_its_query_heads(H_q, H, size):
    for part in parts_of(size, num_attention_heads=H_q, num_key_value_heads=H):
        own = range(part.rank * H_q // size, (part.rank + 1) * H_q // size)
        expected = sorted({head // (H_q // H) for head in own})
        what = f"KV heads of rank {part.rank}, which has query heads {own.start} to {own.stop - 1}"
        assert_equal(list(part.kv_head_range), expected, what)
        assert part.config.num_key_value_heads == len(expected)


def shards(name: str, tensor: mx.array, size: int = 2) -> list[mx.array]:
    return [part.slice_tensor(name, tensor) for part in parts_of(size)]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("layer", "axis"),
    [("q_proj", 0), ("gate_proj", 0), ("up_proj", 0), ("o_proj", 1), ("down_proj", 1)],
)
def test_task_2_concatenated_shards_equal_the_matrix(layer, axis, size):
    whole = mx.arange(128 * 64).reshape(128, 64)
    # Quantized matrices are sharded like unquantized ones.
    for kind in ("weight", "scales", "biases"):
        cut = shards(f"model.layers.0.x.{layer}.{kind}", whole, size)
        assert_equal(mx.concatenate(cut, axis).tolist(), whole.tolist(), kind)
        assert len({each.shape for each in cut}) == 1, "expected shards of equal shape"


def test_task_2_kv_shards_by_head_and_embedding_by_token():
    # 2 heads of 32 rows each.
    heads = mx.repeat(mx.arange(2), 32)[:, None] * mx.ones((1, 8), mx.int32)
    cut = shards("model.layers.0.self_attn.k_proj.weight", heads, 4)
    assert_equal([each.shape for each in cut], [(32, 8)] * 4, "all 32 rows of one head per rank")
    firsts = [each[0, 0].item() for each in cut]
    assert_equal(firsts, [0, 0, 1, 1], "adjacent ranks to share a head")
    cut = shards("model.embed_tokens.weight", mx.arange(211)[:, None])
    assert [(each[0].item(), each.shape[0]) for each in cut] == [(0, 106), (106, 105)]


def test_task_2_norms_and_router_are_replicated_and_experts_sharded():
    parts = parts_of(2, read_config({**MIXTURE, "moe_intermediate_size": 64}))
    norm, router, experts = mx.arange(128), mx.zeros((6, 128)), mx.zeros((6, 64, 128))
    for name, tensor, shape in (
        ("input_layernorm", norm, (128,)),
        ("mlp.gate", router, (6, 128)),
        ("mlp.switch_mlp.up_proj", experts, (6, 32, 128)),
    ):
        for part in parts:
            assert part.slice_tensor(f"model.layers.0.{name}.weight", tensor).shape == shape


def test_task_2_row_biases_are_sharded_and_sum_biases_added_once():
    bias = mx.arange(1, 129)
    for rank, own in enumerate(shards("model.layers.0.self_attn.q_proj.bias", bias)):
        assert own.tolist() == list(range(1 + 64 * rank, 65 + 64 * rank))
    first, second = shards("model.layers.0.mlp.down_proj.bias", bias)
    assert_equal((first + second).tolist(), bias.tolist(), "bias added once by two ranks")


def test_task_2_mlp_shards_sum_to_the_full_output():
    gate, up, down = random(256, 128), random(256, 128), random(128, 256)
    x = random(3, 128)

    def mlp(part: RankShard | None) -> mx.array:
        matrices = {"gate_proj": gate, "up_proj": up, "down_proj": down}
        if part is not None:
            matrices = {
                name: part.slice_tensor(f"model.layers.0.mlp.{name}.weight", w)
                for name, w in matrices.items()
            }
        w_gate, w_up, w_down = matrices.values()
        return (nn.silu(x @ w_gate.T) * (x @ w_up.T)) @ w_down.T

    total = sum((mlp(part) for part in parts_of(4)), mx.zeros((3, 128)))
    assert_close(total, mlp(None), "sum of four shards' outputs", ulps=64)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_task_3_all_ranks_receive_the_same_sum(ranks, dtype, size):
    arrays = evaluated(*(random(5, 67, dtype=dtype) for _ in range(size)))
    sums = ranks(size).run(lambda group: all_reduce(arrays[group.rank()], group))
    expected = sum((each.astype(mx.float32) for each in arrays[1:]), arrays[0].astype(mx.float32))
    for rank, total in enumerate(sums):
        assert_same_bits(total, expected.astype(dtype), f"sum on rank {rank}")


def test_task_3_sum_is_position_invariant(ranks):
    arrays = evaluated(*(random(6, 40) * 10.0**rank for rank in range(3)))
    together = ranks(3).run(lambda group: all_reduce(arrays[group.rank()], group))[0]
    for row in range(6):
        one = evaluated(*(each[row : row + 1] for each in arrays))
        alone = ranks(3).run(lambda group, one=one: all_reduce(one[group.rank()], group))[0]
        assert_same_bits(together[row : row + 1], alone, f"row {row}, separately and in a batch")


def test_task_3_large_arrays_are_split_into_messages(ranks):
    arrays = evaluated(*(random(3, MAX_MESSAGE_BYTES // 4) for _ in range(2)))
    together = ranks(2)
    total = together.run(lambda group: all_reduce(arrays[group.rank()], group))[0]
    assert_same_bits(total, arrays[0] + arrays[1], "sum")
    largest = max(int(np.prod(shape)) * 4 for shape in together.sums + together.gathers)
    assert largest <= MAX_MESSAGE_BYTES, f"expected at most {MAX_MESSAGE_BYTES} B, got {largest}"


def test_task_3_attention_and_mlp_outputs_are_summed(ranks, monkeypatch):
    """Attention adds 1 on rank 0 and 2 on rank 1; the MLP scales by 10 and 100."""

    def halves(block: TensorParallelBlock, names: tuple[str, ...]) -> Any:
        rank = block.block
        return (
            lambda x, *rest: (x, mx.full(x.shape, 1.0 + rank), mx.zeros(1), mx.zeros(1)),
            lambda x, update: (x + update, (x + update) * 10.0 ** (1 + rank)),
        )

    class Writer:
        def __init__(self) -> None:
            fields = {"arrays": [], "names": (), "adapter_ids": None}
            self.attention_metadata = type("AttentionMetadata", (), fields)
            self.buffers: list[mx.array] = [mx.zeros(1), mx.zeros(1)]

    monkeypatch.setattr(TensorParallelBlock, "_halves_for", halves)

    def layer(group: Rank) -> Any:
        block = TensorParallelBlock(group.rank(), group, False, AdapterBatch())  # type: ignore[arg-type]
        return block(mx.array([5.0]), None, (mx.zeros(1), mx.zeros(1)), Writer())  # type: ignore[arg-type]

    for rank, (x, update) in enumerate(ranks(2).run(layer)):
        assert_equal(x.item(), 8.0, f"5 + (1 + 2) = 8 after attention on rank {rank}")
        assert_equal(update.item(), 880.0, f"880 after the MLP on rank {rank}")


@pytest.mark.parametrize("size", [2, 4])
def test_task_4_every_rank_embeds_all_tokens(ranks, size):
    [table] = evaluated(random(10, 16, dtype=mx.bfloat16))
    ids = mx.array([[0, 9, 4], [5, 3, 6]])
    parts = parts_of(size, vocab_size=10)

    def look_up(group: Rank) -> mx.array:
        tokens = parts[group.rank()].vocab_range
        own = table[tokens.start : tokens.stop]
        return VocabParallelEmbedding(lambda ids: own[ids], tokens, group)(ids)  # type: ignore[arg-type]

    mx.eval(ids)
    for rank, rows in enumerate(ranks(size).run(look_up)):
        assert_same_bits(rows, table[ids], f"embeddings on rank {rank}")


@pytest.mark.parametrize("num_rows", [1, 5])
@pytest.mark.parametrize("size", [2, 4])
def test_task_4_every_rank_receives_all_logits(ranks, size, num_rows):
    head, x = evaluated(random(10, 16), random(num_rows, 16))
    [expected] = evaluated(x @ head.T)
    parts = parts_of(size, vocab_size=10)

    def score(group: Rank) -> mx.array:
        part = parts[group.rank()]
        own = head[part.vocab_range.start : part.vocab_range.stop]
        return ParallelLMHead(lambda x: x @ own.T, part.vocab_per_rank, 10, group)(x)  # type: ignore[arg-type]

    for rank, logits in enumerate(ranks(size).run(score)):
        assert_close(logits, expected, f"logits R×V on rank {rank}")


ANSWER = """
from tiny_llm import LLM, SamplingParams
params = SamplingParams(temperature=0, max_tokens=8)
question = [{"role": "user", "content": "What is the capital of Japan?"}]
for size in (2, 1):
    llm = LLM("demo", kv_cache_bytes=2**24, tensor_parallel_size=size)
    [output] = llm.generate([question], params)
    print(output.text)
"""


def test_task_4_two_processes_match_one():
    done = subprocess.run(
        [sys.executable, "-c", ANSWER],
        env={**os.environ, "TINY_LLM_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, "\n".join(done.stderr.strip().splitlines()[-3:])
    two, one = done.stdout.splitlines()
    assert two == one, f"expected {one!r}, the output of one process, got {two!r}"
    assert "Tokyo" in two
