"""Cost model of tensor parallelism, compared with hand-computed values."""

import json

import pytest

from benchmark.all_reduce import fit_link
from benchmark.model_costs import ModelCosts
from benchmark.parallel_cost import (
    LINKS,
    MACHINES,
    Link,
    MachineSpec,
    all_gather_seconds,
    all_reduce_seconds,
    collectives,
    decode_step,
    main,
    model_config,
    prefill_step,
)

LINK = Link(latency=1e-3, bandwidth=1e6, source="a test")
COSTS = ModelCosts.from_config(model_config("qwen3-0.6b", 4, 64))
SLOW = MachineSpec(read=1e9, peak=1e12, source="a test")


def test_one_rank_sends_nothing():
    assert all_reduce_seconds(1e6, 1, LINK) == 0
    assert all_gather_seconds(1e6, 1, LINK) == 0
    single = decode_step(COSTS, SLOW, LINK, 1, batch=4, context=128)
    assert single.collectives == 0
    assert single.total == SLOW.seconds(COSTS.decode_bytes(4, 128), COSTS.decode_flops(4, 128))


def test_collectives_match_hand_computed_times():
    # 4 ranks at 1 MB/s send 3 messages with 1 ms of latency each. A message of an all-reduce has
    # 1 MB, a message of an all-gather a quarter of it.
    assert all_reduce_seconds(1e6, 4, LINK) == pytest.approx(3 * (0.001 + 1))
    assert all_gather_seconds(1e6, 4, LINK) == pytest.approx(3 * (0.001 + 0.25))


def test_step_collectives_match_hand_computed_times():
    # Qwen3-0.6B, 3 rows on 2 ranks: 28 layers, hidden size 1024, vocabulary 151,936, bfloat16.
    reduces = (2 * 28 + 1) * (0.001 + 3 * 1024 * 2 / 1e6)
    gather = 0.001 + 1 * 151_936 * 2 / 2 / 1e6
    assert collectives(COSTS, 3, 1, 2, LINK) == pytest.approx(reduces + gather)


@pytest.mark.parametrize("seconds", [all_reduce_seconds, all_gather_seconds])
def test_time_grows_with_bytes_ranks_and_slower_links(seconds):
    assert seconds(2e6, 2, LINK) > seconds(1e6, 2, LINK)
    assert seconds(1e6, 4, LINK) > seconds(1e6, 2, LINK)
    assert seconds(1e6, 2, Link(2e-3, 1e6, "")) > seconds(1e6, 2, LINK)
    assert seconds(1e6, 2, Link(1e-3, 5e5, "")) > seconds(1e6, 2, LINK)


def test_weights_and_heads_are_split_among_ranks():
    two, one = (prefill_step(COSTS, SLOW, LINK, ranks, 512) for ranks in (2, 1))
    assert two.compute == pytest.approx(one.compute / 2)
    # With 8 key/value heads, the KV memory per rank does not shrink beyond 8 ranks.
    eight, sixteen = (decode_step(COSTS, SLOW, LINK, n, 1, 10**7).compute for n in (8, 16))
    assert sixteen > 0.99 * eight
    with pytest.raises(ValueError, match="16 attention heads are not divisible by 3 ranks"):
        decode_step(COSTS, SLOW, LINK, 3, 1, 1)


def test_70b_model_weight_bytes():
    costs = ModelCosts.from_config(model_config("llama-3-70b", 16, 64))
    embedding = 128_256 * 8192  # embedding rows are looked up, so a step reads only a few of them
    norms = (2 * 80 + 1) * 8192
    assert costs.step_weights + embedding + norms == 70_553_706_496


def test_small_models_are_latency_bound():
    def speedup(link):
        one, two = (decode_step(COSTS, MACHINES["m4-max"], LINKS[link], n, 1, 128) for n in (1, 2))
        return one.total / two.total

    assert speedup("10gbe") < speedup("thunderbolt5-tcp") < speedup("thunderbolt5-rdma")
    assert speedup("thunderbolt5-tcp") < 1


def test_link_parameters_are_fitted_from_timings():
    link = Link(30e-6, 2e9, "")
    seconds = {n: all_reduce_seconds(n, 4, link) for n in (2_048, 65_536, 4_194_304)}
    actual = fit_link(seconds, 4)
    assert actual.latency == pytest.approx(link.latency)
    assert actual.bandwidth == pytest.approx(link.bandwidth)


def test_command_prints_a_row_per_case_and_number_of_ranks(capsys):
    main(["--model", "qwen3-0.6b", "--ranks", "2,4", "--batch", "1", "--latency-us", "5"])
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])
    assert [(row["case"], row["ranks"]) for row in result["rows"]] == [
        (case, ranks) for case in ("decode, batch 1", "prefill of 512") for ranks in (1, 2, 4)
    ]
    assert result["link"]["latency"] == pytest.approx(5e-6)
    assert result["link"]["bandwidth"] == LINKS["thunderbolt5-rdma"].bandwidth
    with pytest.raises(SystemExit):
        main(["--model", "qwen3-0.6b", "--ranks", "3"])
    assert "16 attention heads are not divisible by 3" in capsys.readouterr().err
