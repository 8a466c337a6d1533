"""Cost model of tensor parallelism: step time on N ranks.

    python -m benchmark.parallel_cost --model llama-3-70b --link thunderbolt5-rdma --ranks 1,2,4,8

Each rank holds 1/N of every matrix and of the KV cache, so it reads and computes 1/N. The cost:
the ranks sum their partial results twice per layer, after the attention output and after the MLP.
Each rank receives all others' partial sums, in N − 1 messages (`tiny_llm.models.parallel.layers`
explains why). A step takes

    max(bytes / bandwidth, operations / peak) / N + collectives(N)

The first term is a lower bound from `benchmark.model_costs` and a machine's limits. The second term
is `collectives` below; `benchmark.all_reduce` measures a real link. The terms do not overlap: a
layer needs the sum before it can continue.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmark.model_costs import KV_BYTES, ModelCosts

from .command import benchmark_parser, print_json
from .make_checkpoint import SHAPES, qwen3_config

# From the config.json of Meta's Llama 3 70B.
LLAMA_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000,
}


@dataclass(frozen=True)
class Link:
    """Link between two neighbors in the ring."""

    latency: float  # seconds until a message's first byte arrives, software overhead included
    bandwidth: float  # bytes per second in each direction
    source: str  # origin of latency and bandwidth


LINKS = {
    "10gbe": Link(
        150e-6,
        10e9 / 8,
        "bandwidth nominal; latency: half of the 300 µs that press reports give for an operation "
        "of MLX's ring over TCP between two Macs",
    ),
    "thunderbolt5-tcp": Link(
        150e-6,
        50e9 / 8,
        "bandwidth as reported for RDMA, an upper bound; latency as for 10gbe, also TCP",
    ),
    "thunderbolt5-rdma": Link(
        9e-6,
        50e9 / 8,
        "JACCL: 50 to 60 Gbit/s (80 nominal) and 5 to 9 µs in press and users' reports; the worse "
        "of each",
    ),
}


@dataclass(frozen=True)
class MachineSpec:
    """A machine's memory bandwidth in bytes/s, and peak in operations/s."""

    read: float
    peak: float
    source: str

    def seconds(self, n_bytes: float, flops: float) -> float:
        """Roofline: lower bound on the time to move `n_bytes` and compute `flops`."""
        return max(n_bytes / self.read, flops / self.peak)


MACHINES = {
    "m4-max": MachineSpec(
        546e9,
        5120 * 2 * 1.678e9,
        "40 GPU cores: Apple's nominal bandwidth; 5,120 lanes · 2 operations · 1.678 GHz, reported",
    ),
}


@dataclass(frozen=True)
class StepTime:
    """Seconds per step: `compute` (reading and arithmetic) and `collectives`."""

    compute: float
    collectives: float

    @property
    def total(self) -> float:
        """Seconds per step."""
        return self.compute + self.collectives


def all_reduce_seconds(n_bytes: float, ranks: int, link: Link) -> float:
    """Time of an all-reduce: each rank receives and adds all partial sums.

    The partial sums travel around the ring in N - 1 messages. A classic ring all-reduce has
    2(N - 1) messages of bytes/N each: twice the latency, but less traffic for N > 2.
    """
    return (ranks - 1) * (link.latency + n_bytes / link.bandwidth)


def all_gather_seconds(n_bytes: float, ranks: int, link: Link) -> float:
    """Time of an all-gather of `n_bytes` in total, in N - 1 messages."""
    return (ranks - 1) * (link.latency + n_bytes / ranks / link.bandwidth)


def collectives(
    costs: ModelCosts, rows: int, scored: int, ranks: int, link: Link, item_bytes: int = KV_BYTES
) -> float:
    """Seconds per step in collectives.

    Counts all-reduces of rows · hidden size elements (two per layer, and one after the embedding,
    whose table is split by tokens) and an all-gather of the scored rows' logits.

    Args:
        rows: tokens computed in the step.
        scored: rows for which logits are computed.
        item_bytes: bytes per element sent.
    """
    args = costs.args
    reduces = 2 * args.num_hidden_layers + 1
    hidden = rows * args.hidden_size * item_bytes
    logits = scored * args.vocab_size * item_bytes
    return reduces * all_reduce_seconds(hidden, ranks, link) + all_gather_seconds(
        logits, ranks, link
    )


def decode_step(
    costs: ModelCosts, machine: MachineSpec, link: Link, ranks: int, batch: int, context: int
) -> StepTime:
    """Time of a decoding step of `batch` sequences with `context` tokens each.

    Raises:
        ValueError: the attention heads are not divisible by the number of ranks.
    """
    _check_ranks(costs, ranks)
    past = batch * context * costs.kv_bytes_per_token
    n_bytes = costs.weight_bytes() / ranks + past / _kv_shards(costs, ranks)
    compute = machine.seconds(n_bytes, costs.decode_flops(batch, context) / ranks)
    return StepTime(compute, collectives(costs, batch, batch, ranks, link))


def prefill_step(
    costs: ModelCosts, machine: MachineSpec, link: Link, ranks: int, tokens: int
) -> StepTime:
    """Time of a prefill of `tokens` tokens in one step, with logits of the last token.

    Raises:
        ValueError: the attention heads are not divisible by the number of ranks.
    """
    _check_ranks(costs, ranks)
    compute = machine.seconds(costs.weight_bytes() / ranks, costs.prefill_flops(tokens) / ranks)
    return StepTime(compute, collectives(costs, tokens, 1, ranks, link))


def _kv_shards(costs: ModelCosts, ranks: int) -> int:
    """Number of distinct KV shards; with more ranks than KV heads, some ranks hold equal shards."""
    return min(ranks, costs.args.num_key_value_heads)


def _check_ranks(costs: ModelCosts, ranks: int) -> None:
    heads = costs.args.num_attention_heads
    if ranks < 1 or heads % ranks:
        raise ValueError(
            f"{heads} attention heads are not divisible by {ranks} ranks; choose a divisor of "
            f"{heads}."
        )


def model_config(name: str, bits: int, group_size: int) -> dict[str, Any]:
    """`config.json` of a model: `llama-3-70b` or a key of `SHAPES`.

    With 16 `bits`, the model is unquantized.

    Raises:
        ValueError: the name is unknown.
    """
    if name != "llama-3-70b" and name not in SHAPES:
        raise ValueError(
            f"unknown model '{name}'; choose from {', '.join([*SHAPES, 'llama-3-70b'])}."
        )
    config = dict(LLAMA_70B) if name == "llama-3-70b" else qwen3_config(*SHAPES[name])
    if bits != 16:
        config["quantization"] = {"bits": bits, "group_size": group_size}
    return config


def table(
    costs: ModelCosts,
    machine: MachineSpec,
    link: Link,
    ranks: Sequence[int],
    batches: Sequence[int],
    context: int,
    prompt: int,
) -> list[dict[str, Any]]:
    """One row per case and number of ranks; `speedup` is relative to one rank."""
    rows = []
    cases = [(f"decode, batch {batch}", batch) for batch in batches]
    for name, batch in [*cases, (f"prefill of {prompt}", 0)]:
        for n in [1, *(n for n in ranks if n != 1)]:
            if batch:
                step = decode_step(costs, machine, link, n, batch, context)
            else:
                step = prefill_step(costs, machine, link, n, prompt)
            if n == 1:
                one_rank = step.total
            rows.append(
                {
                    "case": name,
                    "ranks": n,
                    "weights_gb": costs.weight_bytes() / n / 1e9,
                    "compute_ms": step.compute * 1e3,
                    "collectives_ms": step.collectives * 1e3,
                    "tokens_per_s": (batch or prompt) / step.total,
                    "speedup": one_rank / step.total,
                }
            )
    return rows


def _int_list(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the table, then its data as a line of JSON."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="qwen3-8b", help=f"{', '.join(SHAPES)} or llama-3-70b")
    parser.add_argument("--bits", type=int, default=4, help="bits per weight; 16 is bfloat16")
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--link", choices=LINKS, default="thunderbolt5-rdma")
    parser.add_argument("--latency-us", type=float, help="message latency in µs, overrides --link")
    parser.add_argument(
        "--link-gbit", type=float, help="link bandwidth in Gbit/s per direction, overrides --link"
    )
    parser.add_argument("--machine", choices=MACHINES, default="m4-max")
    parser.add_argument(
        "--read-gb", type=float, help="memory bandwidth in GB/s, overrides --machine"
    )
    parser.add_argument("--peak-tflop", type=float, help="peak in TFLOP/s, overrides --machine")
    parser.add_argument("--ranks", type=_int_list, default=[1, 2, 4, 8], metavar="N,N,…")
    parser.add_argument("--batch", type=_int_list, default=[1, 16], metavar="B,B,…")
    parser.add_argument("--context", type=int, default=1024, help="context length, in tokens")
    parser.add_argument("--prompt", type=int, default=512, help="prompt length, in tokens")
    args = parser.parse_args(argv)
    link, machine = _link_and_machine(args)
    try:
        costs = ModelCosts.from_config(model_config(args.model, args.bits, args.group_size))
        rows = table(costs, machine, link, args.ranks, args.batch, args.context, args.prompt)
    except ValueError as error:
        parser.error(str(error))
    print(f"{args.model}, {costs.weight_bits:g} bits per weight, context {args.context}")
    print(
        f"machine: {machine.read / 1e9:g} GB/s, {machine.peak / 1e12:.1f} TFLOP/s: {machine.source}"
    )
    print(f"link: {link.latency * 1e6:g} µs, {link.bandwidth * 8e-9:g} Gbit/s: {link.source}\n")
    print("case               ranks  GB/rank  compute ms  link ms  tokens/s  speed-up")
    for row in rows:
        print(
            f"{row['case']:18} {row['ranks']:5}  {row['weights_gb']:7.2f}"
            f"  {row['compute_ms']:10.2f}  {row['collectives_ms']:7.2f}"
            f"  {row['tokens_per_s']:8.1f}  {row['speedup']:7.2f}×"
        )
    print_json({"model": args.model, "link": asdict(link), "rows": rows})


def _link_and_machine(args: argparse.Namespace) -> tuple[Link, MachineSpec]:
    """Link and machine, with overrides from the flags."""
    link, machine = LINKS[args.link], MACHINES[args.machine]
    if args.latency_us is not None or args.link_gbit is not None:
        latency = link.latency if args.latency_us is None else args.latency_us * 1e-6
        bandwidth = link.bandwidth if args.link_gbit is None else args.link_gbit * 1e9 / 8
        link = Link(latency, bandwidth, f"{args.link} with overrides from the flags")
    if args.read_gb is not None or args.peak_tflop is not None:
        read = machine.read if args.read_gb is None else args.read_gb * 1e9
        peak = machine.peak if args.peak_tflop is None else args.peak_tflop * 1e12
        machine = MachineSpec(read, peak, f"{args.machine} with overrides from the flags")
    return link, machine


if __name__ == "__main__":
    main()
