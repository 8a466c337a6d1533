"""Report of `peers` as Markdown tables."""

from collections.abc import Callable
from pathlib import Path

from .metrics import Metric
from .peers_results import OURS, Results
from .timing import Times


def write_table(results: Results, file: Path) -> str:
    """Writes the report to a file; returns its text."""
    timed = [metric for metric in results.metrics if metric.kind != "load"]
    peers = [system for system in results.systems if system != OURS]
    sections = [
        f"# {results.shape}",
        str(results.machine or "The machine's limits were not measured."),
        "Tokens per second: median of the rounds, and the best round in parentheses. Decoding "
        "starts at a context of 128 tokens unless another number is given.",
        _table("system", results.systems, timed, lambda s, m: _throughput(results, s, m)),
    ]
    if results.machine:
        sections += [
            f"Percent of the roofline for tiny-llm's {results.costs.weight_bits:.3g}-bit weights "
            "and, in parentheses, for the system's own weight format.",
            _table("system", results.systems, timed, lambda s, m: _shares(results, s, m)),
            "Median percent of the limits measured around each round, instead of the best limits.",
            _table("system", results.systems, timed, lambda s, m: _round_share(results, s, m)),
        ]
    if OURS in results.systems and peers:
        sections += [
            "Speed of tiny-llm relative to each peer.",
            _table("peer", peers, results.metrics, lambda s, m: _ratio(results, s, m)),
        ]
    if results.loads:
        sections += [
            "From process start to the first token of a one-token prompt, with a warm page cache.",
            _loads(results),
        ]
    sections += ["\n".join(_remarks(results))]
    text = "\n\n".join(sections) + "\n"
    file.write_text(text)
    return text


def _table(
    corner: str,
    systems: list[str],
    metrics: list[Metric],
    cell: Callable[[str, Metric], str],
) -> str:
    rows = [
        [corner, *(metric.label for metric in metrics)],
        ["---", *("---:" for _ in metrics)],
        *([system, *(cell(system, metric) for metric in metrics)] for system in systems),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _throughput(results: Results, system: str, metric: Metric) -> str:
    throughput = results.throughput(system, metric)
    if throughput is None:
        return "–"
    scaled = "†" if "scaled" in results.notes.get((system, metric.name), "") else ""
    return f"{_number(throughput[0])}{scaled} ({_number(throughput[1])})"


def _shares(results: Results, system: str, metric: Metric) -> str:
    share, own = results.share(system, metric), results.share(system, metric, own_weights=True)
    if share is None or own is None:
        return "–"
    return f"{100 * share:.1f} ({100 * own:.1f})"


def _round_share(results: Results, system: str, metric: Metric) -> str:
    share = results.share_of_round_limits(system, metric)
    return "–" if share is None else f"{100 * share:.1f}"


def _ratio(results: Results, peer: str, metric: Metric) -> str:
    ratio = results.ratio(peer, metric)
    return "–" if ratio is None else f"{_number(ratio)} ×"


def _loads(results: Results) -> str:
    lines = [
        "| system | seconds, median (best) | peak memory, MB | checkpoint, MB |",
        "|---|---:|---:|---:|",
    ]
    for system, loads in results.loads.items():
        times = Times.of([load.process_seconds for load in loads])
        peak = max(load.peak_bytes for load in loads) / 1e6
        size = results.checkpoint_bytes[system] / 1e6
        lines.append(
            f"| {system} | {times.median:.1f} ({times.minimum:.1f}) | {peak:,.0f} | {size:,.0f} |"
        )
    return "\n".join(lines)


def _remarks(results: Results) -> list[str]:
    """Settings of each system, and reasons for missing figures."""
    lines = [f"- {system}: {ready.about}" for system, ready in results.ready.items()]
    labels = {metric.name: metric.label for metric in results.metrics}
    for (system, metric), note in results.notes.items():
        mark = "† " if "scaled" in note else ""
        lines.append(f"- {mark}{system}, {labels[metric]}: {note}")
    for (system, metric), reason in results.missing.items():
        lines.append(f"- {system}, {labels[metric]}: not measured: {reason.rstrip('.')}")
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
