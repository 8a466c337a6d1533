"""Prometheus metrics prefixed `tiny_llm:`, named as in vLLM if it has them."""

from collections import Counter as Counts
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ...engine.scheduling.request import StreamOutput
from .messages import EngineStats

BUCKETS = (  # seconds
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.25, 2.5, 5, 10, 20, 40, 80),
)
# Metrics that are fields of `EngineStats`: name, description, field.
GAUGES = (
    ("num_requests_running", "Requests running.", "running"),
    ("num_requests_waiting", "Requests waiting in the queue.", "waiting"),
    ("kv_cache_pages", "KV cache pages.", "pages"),
    ("state_slots", "Recurrent state slots.", "state_slots"),
    ("state_slots_used", "Recurrent state slots used by requests.", "used_state_slots"),
    ("state_checkpoints", "Prefix cache checkpoints of recurrent states.", "checkpoints"),
)
COUNTERS = (
    ("prompt_tokens", "Prompt tokens.", "prompt_tokens"),
    ("prefix_cache_queries", "Prefix cache queries, in tokens.", "prompt_tokens"),
    ("prefix_cache_hits", "Prefix cache hits, in tokens.", "cached_tokens"),
    ("num_preemptions", "Preemptions.", "preemptions"),
    ("memory_evictions", "Cached pages evicted because system memory was low.", "memory_evictions"),
    ("spec_decode_num_draft_tokens", "Draft tokens proposed.", "draft_tokens"),
    ("spec_decode_num_accepted_tokens", "Draft tokens accepted.", "accepted_draft_tokens"),
    ("engine_steps", "Engine steps.", "steps"),
)


class Metrics:
    """One server's metrics; `models` are the values of the `model_name` label."""

    def __init__(self, models: Iterable[str]):
        self._models = list(models)
        self._registry = CollectorRegistry()
        self._stats: Mapping[str, EngineStats] = {}
        self._memory_bytes: Mapping[str, int] = {}
        self._num_generated: Counts[str] = Counts()
        self._finished = Counter(
            "tiny_llm:request_success",  # the library appends `_total`
            "Finished requests by reason.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._http_requests = Counter(
            "tiny_llm:http_requests",
            "HTTP requests by endpoint, method and status.",
            ["endpoint", "method", "status"],
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

    def count_http_request(self, endpoint: str, method: str, status: int) -> None:
        self._http_requests.labels(endpoint, method, str(status)).inc()

    def observe_output(self, model: str, output: StreamOutput) -> None:
        self._num_generated[model] += len(output.token_ids)
        if output.finish_reason is None:
            return
        self._finished.labels(model, output.finish_reason).inc()
        metrics = output.metrics
        if metrics is None or metrics.e2e_seconds is None:
            return
        self._e2e_latency.labels(model).observe(metrics.e2e_seconds)
        if metrics.queue_seconds is not None:
            self._queue_time.labels(model).observe(metrics.queue_seconds)
        if metrics.ttft is not None:
            self._ttft.labels(model).observe(metrics.ttft)
            num_later_tokens = metrics.num_generation_tokens - 1
            if num_later_tokens > 0:
                decode_seconds = metrics.e2e_seconds - metrics.ttft
                self._time_per_output_token.labels(model).observe(decode_seconds / num_later_tokens)

    def render(self, stats: Mapping[str, EngineStats], memory_bytes: Mapping[str, int]) -> bytes:
        """Renders the `/metrics` response; `memory_bytes` lists loaded models only."""
        self._stats, self._memory_bytes = stats, memory_bytes
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yields the engine stats as metrics; called by the registry."""
        for kind, fields in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, description, field in fields:
                values = {model: getattr(stats, field) for model, stats in self._stats.items()}
                yield self._family(kind, name, description, values)
        used = {
            model: 1 - stats.free_pages / stats.pages if stats.pages else 0.0
            for model, stats in self._stats.items()
        }
        yield self._family(
            GaugeMetricFamily, "kv_cache_usage_perc", "KV cache usage; 1 is full.", used
        )
        yield self._family(
            GaugeMetricFamily,
            "model_memory_bytes",
            "Memory required by a model (weights and KV cache); 0 while it is not loaded.",
            {model: self._memory_bytes.get(model, 0) for model in self._models},
        )
        generated = {model: self._num_generated[model] for model in self._models}
        yield self._family(CounterMetricFamily, "generation_tokens", "Generated tokens.", generated)
        yield from self._disk_cache_families()

    def _disk_cache_families(self) -> Iterable[Metric]:
        for kind, name, text, key in (
            (GaugeMetricFamily, "bytes", "Size of the prefix cache on disk.", "num_bytes"),
            (CounterMetricFamily, "hits", "Prefix cache hits on disk, in tokens.", "hit_tokens"),
            (CounterMetricFamily, "read_bytes", "Bytes read from disk.", "read_bytes"),
            (CounterMetricFamily, "written_bytes", "Bytes written to disk.", "written_bytes"),
            (CounterMetricFamily, "errors", "Unreadable pages and failed writes.", "num_errors"),
        ):
            values = {
                model: stats.disk_cache[key]
                for model, stats in self._stats.items()
                if stats.disk_cache is not None and key in stats.disk_cache
            }
            if values:
                yield self._family(kind, f"prefix_cache_disk_{name}", text, values)

    def _family(self, kind: Any, name: str, text: str, values: Mapping[str, float]) -> Metric:
        family = kind(f"tiny_llm:{name}", text, labels=["model_name"])
        for model, number in values.items():
            family.add_metric([model], number)
        return family

    def _histogram(self, name: str, text: str) -> Histogram:
        histogram = Histogram(
            f"tiny_llm:{name}", text, ["model_name"], registry=self._registry, buckets=BUCKETS
        )
        for model in self._models:
            histogram.labels(model)  # creates the series, so that it is reported from startup
        return histogram


def add_totals(stats: EngineStats, earlier: EngineStats) -> EngineStats:
    """Adds the counters, which restart at 0 with each load of the model."""
    fields = {field for _, _, field in COUNTERS}
    totals = {name: getattr(stats, name) + getattr(earlier, name) for name in fields}
    return replace(stats, **totals)
