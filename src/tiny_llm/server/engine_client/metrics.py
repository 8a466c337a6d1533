"""Prometheus metrics, with vLLM's names (`tiny_llm:` for `vllm:`)."""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ...engine.scheduling.outputs import StreamOutput
from .messages import EngineStats

LATENCY_BUCKETS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.25,
    2.5,
    5,
    10,
    20,
    40,
    80,
)


class Metrics:
    """Metrics of one server, in a separate registry.

    Args:
        model: value of the `model_name` label.
    """

    def __init__(self, model: str):
        self._model = model
        self._registry = CollectorRegistry()
        self._stats = EngineStats()
        self._num_generated = 0
        self._finished = Counter(
            "tiny_llm:request_success",  # the library appends `_total`
            "Finished requests by reason.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._ttft = self._histogram("time_to_first_token_seconds", "Time to first token.")
        self._queue_time = self._histogram("request_queue_time_seconds", "Time in the queue.")
        self._e2e_latency = self._histogram(
            "e2e_request_latency_seconds", "End-to-end request latency."
        )
        self._time_per_output_token = self._histogram(
            "request_time_per_output_token_seconds", "Time per output token after the first."
        )
        self._registry.register(self)

    def observe_output(self, output: StreamOutput) -> None:
        """Records an output."""
        self._num_generated += len(output.token_ids)
        if output.finish_reason is None:
            return
        self._finished.labels(self._model, output.finish_reason).inc()
        metrics = output.metrics
        if metrics is None or metrics.e2e_seconds is None:
            return
        self._e2e_latency.observe(metrics.e2e_seconds)
        if metrics.queue_seconds is not None:
            self._queue_time.observe(metrics.queue_seconds)
        if metrics.ttft is not None:
            self._ttft.observe(metrics.ttft)
            num_later_tokens = metrics.num_generation_tokens - 1
            if num_later_tokens > 0:
                decode_seconds = metrics.e2e_seconds - metrics.ttft
                self._time_per_output_token.observe(decode_seconds / num_later_tokens)

    def render(self, stats: EngineStats) -> bytes:
        """Renders the body of `/metrics`."""
        self._stats = stats
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yields the engine's stats; called by the registry."""
        stats = self._stats
        used = 1 - stats.free_pages / stats.pages if stats.pages else 0.0
        for name, text, number in (
            ("num_requests_running", "Requests running.", stats.running),
            ("num_requests_waiting", "Requests waiting in the queue.", stats.waiting),
            ("kv_cache_usage_perc", "KV cache usage; 1 is full.", used),
            ("kv_cache_pages", "KV cache pages.", stats.pages),
        ):
            yield self._family(GaugeMetricFamily, name, text, number)
        for name, text, number in (
            ("prompt_tokens", "Prompt tokens.", stats.prompt_tokens),
            ("generation_tokens", "Generated tokens.", self._num_generated),
            ("prefix_cache_queries", "Prefix cache queries, in tokens.", stats.prompt_tokens),
            ("prefix_cache_hits", "Prefix cache hits, in tokens.", stats.cached_tokens),
            ("num_preemptions", "Preemptions.", stats.preemptions),
            ("spec_decode_num_draft_tokens", "Draft tokens proposed.", stats.draft_tokens),
            (
                "spec_decode_num_accepted_tokens",
                "Draft tokens accepted.",
                stats.accepted_draft_tokens,
            ),
            ("engine_steps", "Engine steps.", stats.steps),
        ):
            yield self._family(CounterMetricFamily, name, text, number)

    def _family(self, kind: Any, name: str, text: str, number: float) -> Metric:
        family = kind(f"tiny_llm:{name}", text, labels=["model_name"])
        family.add_metric([self._model], number)
        return family

    def _histogram(self, name: str, text: str) -> Histogram:
        histogram = Histogram(
            f"tiny_llm:{name}",
            text,
            ["model_name"],
            registry=self._registry,
            buckets=LATENCY_BUCKETS,
        )
        return histogram.labels(self._model)
