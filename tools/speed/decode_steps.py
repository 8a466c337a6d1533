"""Day 4.7: decoding steps as separate graph nodes, and captured as one node.

    python -m tools.speed.decode_steps kernels --read 40e9 --peak 500e9 --day 4.7 --rounds 5

Arguments and results as in matmuls.py, plus remarks on the cost and the number of graph nodes.
"""

import io
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from benchmark.model_costs import ModelCosts
from tiny_llm import Qwen3ModelWeek2, kernels, load
from tiny_llm.demo import TARGET_PATH
from tiny_llm.errors import TaskNotImplemented
from tiny_llm.kernels.graph_capture import CAPTURE_VARIABLE
from tiny_llm.kernels.roofline import (
    HardwareLimits,
    KernelCost,
    Timings,
    captured_time_fraction,
    seconds_per_node,
)

from . import matmuls

CONTEXT, STEPS = 64, 8  # context length in tokens, decoding steps per run
CAPTURE_MODES = {"nodes": "off", "captured": "on"}
# Matmul kernels of Week 4, best first.
MATMULS = ("panels", "prefetched", "prepacked", "vectors", "factored")
CHAIN = (1, 64, 128, 256)  # nodes per graph, to estimate the time per node
CHAIN_ROUNDS = 3  # factor on the number of rounds, because these runs are short


def best_matmul_kernel() -> str | None:
    """Week 4's best implemented matmul kernel, or TINY_LLM_MATMUL if it is set.

    None is the default kernel, which is Week 2's loops in the learner's code.
    """
    if os.environ.get(matmuls.VARIABLE):
        return os.environ[matmuls.VARIABLE]
    for name in MATMULS:
        with matmuls.selected_kernel(name):
            try:
                kernels.prepack_rows()
            except (RuntimeError, ValueError):  # not implemented, or not supported by this machine
                continue
        return name
    return None


class Decoding:
    """Decoding steps of the demo model: Week 2's model with contiguous caches.

    `capture` is the value of `CAPTURE_VARIABLE`, `matmul` that of TINY_LLM_MATMUL.
    """

    def __init__(self, capture: str, matmul: str | None):
        self._wanted = {CAPTURE_VARIABLE: capture, matmuls.VARIABLE: matmul}
        with matmuls.with_variables(self._wanted):
            self._model = Qwen3ModelWeek2(load("demo")[0], enable_flash_attn=True)
            self._caches = self._model.create_kv_cache()
            prompt = mx.arange(CONTEXT)[None] % self._model.vocab_size
            mx.eval(self._model(prompt, 0, self._caches))
        self._token = mx.array([[1]])

    def run(self) -> None:
        """Runs STEPS steps, then rewinds the caches."""
        with matmuls.with_variables(self._wanted):
            for number in range(STEPS):
                mx.eval(self._model(self._token, CONTEXT + number, self._caches))
        for cache in self._caches:
            cache.rewind(STEPS)

    def num_nodes(self) -> int:
        """Number of nodes in the graph of one decoding step."""
        dot = io.StringIO()
        with matmuls.with_variables(self._wanted):
            logits = self._model(self._token, CONTEXT, self._caches)
            mx.export_to_dot(dot, logits)
            mx.eval(logits)
        for cache in self._caches:
            cache.rewind(1)
        return len(re.findall(r'label ="\w+", shape=rectangle', dot.getvalue()))


def chain(nodes: int) -> Callable[[], mx.array]:
    """Returns a function that builds a graph of `nodes` nodes with little computation."""
    x, weight = mx.ones((1, 1, 64)), mx.ones(64)
    mx.eval(x, weight)

    def run() -> mx.array:
        y = x
        for _ in range(nodes):
            y = kernels.rms_norm(y, weight, 1e-6)
        return y

    return run


def measure(limits: HardwareLimits, rounds: int, best: bool) -> dict[str, Any]:
    """Measures separate and captured steps, interleaved; if `best`, only captured steps."""
    decoding: dict[str, Decoding] = {}
    unwritten: dict[str, str] = {}
    matmul = None if best else best_matmul_kernel()
    for name, capture in ({"best": "on"} if best else CAPTURE_MODES).items():
        try:
            decoding[name] = Decoding(capture, matmul)
            decoding[name].run()
        except (TaskNotImplemented, RuntimeError, ValueError) as error:
            decoding.pop(name, None)
            unwritten[name] = str(error)
    times = matmuls.run_interleaved({name: steps.run for name, steps in decoding.items()}, rounds)
    costs = ModelCosts.from_folder(TARGET_PATH)
    cost = KernelCost(
        STEPS * costs.decode_bytes(1, CONTEXT), STEPS * costs.decode_flops(1, CONTEXT)
    )
    rows = {name: matmuls.row(times[name], cost, limits) for name in decoding}
    nodes = {name: steps.num_nodes() for name, steps in decoding.items()}
    remarks = [] if best else remarks_of(times, nodes, rounds, unwritten)
    if matmul is not None:
        remarks.append(f"matmuls by your kernel {matmul}")
    return {"rows": rows, "unwritten": unwritten, "prefetch_distance": None, "remarks": remarks}


def remarks_of(
    times: dict[str, Timings], nodes: dict[str, int], rounds: int, unwritten: dict[str, str]
) -> list[str]:
    """Remarks on a node's cost and share of a step; records unimplemented tasks in `unwritten`."""
    counted = ", ".join(f"{count} {name}" for name, count in nodes.items())
    remarks = [f"nodes of a step's graph: {counted}"]
    chains = matmuls.run_interleaved({f"{n} nodes": chain(n) for n in CHAIN}, rounds * CHAIN_ROUNDS)
    try:
        node = seconds_per_node({n: chains[f"{n} nodes"] for n in CHAIN})
        remarks.append(f"seconds_per_node() of your roofline.py returns {1e6 * node:.1f} µs a node")
        if set(times) == set(CAPTURE_MODES):
            seconds = times["nodes"].minimum / STEPS
            predicted = captured_time_fraction(nodes["nodes"], nodes["captured"], node, seconds)
            used = times["captured"].minimum / times["nodes"].minimum
            remarks.append(
                f"captured_time_fraction() predicts {predicted:.2f} of the time; it took {used:.2f}"
            )
    except TaskNotImplemented as error:
        unwritten["cost of a node"] = str(error)
    return remarks


if __name__ == "__main__":
    sys.exit(matmuls.measurement_main(measure))
