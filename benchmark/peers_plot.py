"""Bar chart of the systems' throughput, with the machine's limits."""

from pathlib import Path
from typing import Any

from .metrics import Metric
from .peers_results import Results
from .roofline import Machine

# Okabe and Ito's color-blind-safe palette: (bar color, color of the text on the bar). Systems
# without a color are omitted.
COLORS = {
    "tiny-llm": ("#0072B2", "white"),
    "tiny-llm-8bit": ("#66AAD7", "black"),
    "llama.cpp": ("#E69F00", "black"),
    "ik_llama.cpp": ("#D55E00", "white"),
    "openvino": ("#56B4E9", "black"),
    "onnxruntime": ("#F0E442", "black"),
    "transformers": ("#009E73", "white"),
    "mlx-lm": ("#CC79A7", "black"),
}
GROUP_WIDTH = 0.8


def write_plot(results: Results, file: Path) -> None:
    """Writes the figure; without matplotlib, prints a message instead."""
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed; no figure is written.")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [
        (title, [metric for metric in results.metrics if metric.kind == kind])
        for title, kind in (("Decoding", "decode"), ("Prefill", "prefill"))
    ]
    panels = [(title, metrics) for title, metrics in panels if metrics]
    widths = [1 + len(metrics) for _, metrics in panels]
    figure, axes = pyplot.subplots(
        1,
        len(panels),
        figsize=(1.8 * sum(widths), 5.6),
        gridspec_kw={"width_ratios": widths},
        squeeze=False,
        layout="constrained",
    )
    for axis, (title, metrics) in zip(axes[0], panels, strict=True):
        _panel(axis, results, metrics)
        axis.set_title(title, fontsize=13)
    axes[0][0].set_ylabel("tokens per second (logarithmic)")
    handles: dict[str, Any] = {}
    for axis in axes[0]:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels = sorted(handles, key=lambda label: label not in COLORS)  # systems first, then limits
    figure.legend(
        [handles[label] for label in labels],
        labels,
        loc="outside lower center",
        ncols=max(1, sum(label in COLORS for label in labels)),
        frameon=False,
    )
    figure.suptitle(f"{results.shape}: {results.machine or 'limits not measured'}", fontsize=10)
    figure.savefig(file, dpi=130)
    pyplot.close(figure)


def _panel(axis: Any, results: Results, metrics: list[Metric]) -> None:
    systems = [system for system in results.systems if system in COLORS]
    width = GROUP_WIDTH / len(systems)
    for index, system in enumerate(systems):
        left = -GROUP_WIDTH / 2 + (index + 0.5) * width
        for group, metric in enumerate(metrics):
            throughput = results.throughput(system, metric)
            if throughput is None:
                axis.annotate(
                    "not measured",
                    (group + left, 0),
                    (0, 4),
                    xycoords=("data", "axes fraction"),
                    textcoords="offset points",
                    rotation=90,
                    ha="center",
                    va="bottom",
                    fontsize=7,
                    color="0.5",
                )
                continue
            color, text_color = COLORS[system]
            axis.bar(group + left, throughput[0], width * 0.92, color=color, label=system)
            scaled = "†" if "scaled" in results.notes.get((system, metric.name), "") else ""
            text = f"{throughput[0]:,.0f}" if throughput[0] >= 10 else f"{throughput[0]:.2g}"
            axis.annotate(
                text + scaled,
                (group + left, throughput[0]),
                (0, -3),  # inside the bar, because limits are drawn above it
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize=9,
                color=text_color,
            )
    for group, metric in enumerate(metrics):
        for label, limit, style in _limits(results, metric):
            axis.hlines(
                limit,
                group - GROUP_WIDTH / 2,
                group + GROUP_WIDTH / 2,
                colors="black",
                linestyles=style,
                linewidth=1.4,
                label=label,
            )
    axis.set_yscale("log")
    axis.set_xticks(range(len(metrics)), [_tick(metric) for metric in metrics])
    axis.margins(y=0.15)
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _tick(metric: Metric) -> str:
    if metric.kind == "prefill":
        return f"{metric.tokens:,} tokens"
    sequences = "1 sequence" if metric.batch == 1 else f"{metric.batch} sequences"
    return f"{sequences}\ncontext {metric.tokens:,}"


def _limits(results: Results, metric: Metric) -> list[tuple[str, float, str]]:
    """Limit lines of a metric: (label, tokens per second, line style)."""
    machine = results.machine
    if machine is None:
        return []
    flops = _flops(results, metric)
    per_step = metric.tokens if metric.kind == "prefill" else metric.batch
    limits = [
        ("arithmetic: vector instructions", _rate(per_step, flops, machine.vector_gflop_per_s), ":")
    ]
    if machine.amx_gflop_per_s:
        rate = _rate(per_step, flops, machine.amx_gflop_per_s)
        limits.append(("arithmetic: AMX", rate, "--"))
    if metric.kind == "decode":
        label = f"memory: {results.costs.weight_bits:.3g}-bit weights and KV"
        limits.append((label, _memory(results, metric, machine), "-"))
    return limits


def _memory(results: Results, metric: Metric, machine: Machine) -> float:
    n_bytes = results.costs.decode_bytes(metric.batch, metric.tokens)
    return _rate(metric.batch, n_bytes, machine.read_gb_per_s)


def _flops(results: Results, metric: Metric) -> float:
    if metric.kind == "prefill":
        return results.costs.prefill_flops(metric.tokens)
    return results.costs.decode_flops(metric.batch, metric.tokens)


def _rate(tokens: int, amount: float, giga_per_second: float) -> float:
    return tokens * giga_per_second * 1e9 / amount
