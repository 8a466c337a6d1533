"""The servers as a figure: output tokens per second, and the time to the first token, by clients.

    python -m benchmark.http_plot RESULTS… --title TITLE --out FIGURE

RESULTS are files with the JSON line that `benchmark.http_serving` ends in; runs with other numbers
of clients are put beside each other.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Systems = dict[str, dict[int, dict[str, float]]]

# Okabe and Ito's colours, which people who see fewer can tell apart.
COLOURS = {"LLM": "#56B4E9", "serve": "#0072B2", "llama-server": "#E69F00"}
LABELS = {
    "LLM": "LLM, in its own process",
    "serve": "tiny-llm serve",
    "llama-server": "llama.cpp's llama-server",
}
# What a panel shows: its title, the figure, in how many of which it is told, and how.
PANELS = (
    ("Output tokens per second", "output_tokens_per_s", 1.0, "{:.0f}"),
    ("First token, 95th percentile, seconds (logarithmic)", "first_token_ms_p95", 1e-3, "{:.2g}"),
)
GROUP_WIDTH = 0.8


def read_results(files: Sequence[Path]) -> Systems:
    """The figures of several runs together: of each system, by number of clients."""
    systems: Systems = {}
    for file in files:
        result = json.loads(file.read_text(encoding="utf-8").strip().splitlines()[-1])
        for name, by_clients in result["systems"].items():
            figures = {int(clients): one for clients, one in by_clients.items()}
            systems[name] = systems.get(name, {}) | figures
    return systems


def write_plot(systems: Systems, title: str, file: Path) -> None:
    """Writes the figure.

    Args:
        systems: of each, the figures of `LoadResult.figures` by number of clients.
        title: what was measured, and where.
        file: ends in .png or .svg.
    """
    import matplotlib  # the group `benchmark` has it

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.6), layout="constrained")
    for axis, (heading, name, scale, form) in zip(axes, PANELS, strict=True):
        _panel(axis, systems, name, scale, form)
        axis.set_title(heading, fontsize=12)
    axes[1].set_yscale("log")
    axes[1].margins(y=0.15)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(title, fontsize=10)
    figure.savefig(file, dpi=130)
    pyplot.close(figure)


def _panel(axis: Any, systems: Systems, name: str, scale: float, form: str) -> None:
    width = GROUP_WIDTH / len(systems)
    for number, (system, by_clients) in enumerate(systems.items()):
        left = -GROUP_WIDTH / 2 + (number + 0.5) * width
        values = [figures[name] * scale for figures in by_clients.values()]
        places = [group + left for group in range(len(values))]
        bars = axis.bar(places, values, width * 0.92, color=COLOURS[system], label=LABELS[system])
        axis.bar_label(bars, [form.format(value) for value in values], padding=2, fontsize=8)
    clients = list(next(iter(systems.values())))
    axis.set_xticks(range(len(clients)), [f"{n} client{'s' * (n > 1)}" for n in clients])
    axis.grid(axis="y", alpha=0.3)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def main() -> int:
    """Draws what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--title", required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="FIGURE")
    args = parser.parse_args()
    write_plot(read_results(args.results), args.title, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
