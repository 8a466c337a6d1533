"""What `/metrics` tells: counts and times, with vLLM's names (`vllm:` is `tiny_llm:`)."""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from .seam import Gauges, Piece

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.25, 2.5, 5, 10, 20, 40, 80)


class Metrics:
    """Counts what the engine reports; each server has its own.

    Args:
        model: its name, which every number is labelled with.
    """

    def __init__(self, model: str):
        self._model = model
        self._registry = CollectorRegistry()
        self._gauges = Gauges()
        self._num_generated = 0
        self._ended = Counter(
            "tiny_llm:request_success",  # the library adds `_total`
            "Answers that ended, by reason.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )
        self._first = self._histogram("time_to_first_token_seconds", "From arrival to a token.")
        self._queue = self._histogram("request_queue_time_seconds", "From arrival to a step.")
        self._total = self._histogram("e2e_request_latency_seconds", "From arrival to the end.")
        self._each = self._histogram("request_time_per_output_token_seconds", "After the first.")
        self._registry.register(self)

    def count(self, piece: Piece) -> None:
        """Counts a piece of an answer."""
        self._num_generated += len(piece.token_ids)
        if piece.finish_reason is None:
            return
        self._ended.labels(self._model, piece.finish_reason).inc()
        times = piece.times
        if times is None:
            return
        self._total.observe(times.total)
        if times.queue is not None:
            self._queue.observe(times.queue)
        if times.first_token is not None:
            self._first.observe(times.first_token)
            if times.tokens > 1:
                self._each.observe((times.total - times.first_token) / (times.tokens - 1))

    def page(self, gauges: Gauges) -> bytes:
        """The text of `/metrics`."""
        self._gauges = gauges
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """The engine's own numbers, for the registry."""
        gauges = self._gauges
        used = 1 - gauges.free_pages / gauges.pages if gauges.pages else 0.0
        for name, text, number in (
            ("num_requests_running", "Answers that are being computed.", gauges.running),
            ("num_requests_waiting", "Answers in the queue.", gauges.waiting),
            ("kv_cache_usage_perc", "Pages that requests hold, of 1.", used),
            ("kv_cache_pages", "Pages of keys and values.", gauges.pages),
        ):
            yield self._family(GaugeMetricFamily, name, text, number)
        for name, text, number in (
            ("prompt_tokens", "Tokens of prompts.", gauges.prompt_tokens),
            ("generation_tokens", "Tokens of answers.", self._num_generated),
            ("prefix_cache_queries", "Tokens looked up in the cache.", gauges.prompt_tokens),
            ("prefix_cache_hits", "Tokens found in the cache.", gauges.cached_tokens),
            ("num_preemptions", "Requests that gave up their pages.", gauges.preemptions),
            ("spec_decode_num_draft_tokens", "Guesses.", gauges.guesses),
            ("spec_decode_num_accepted_tokens", "Right guesses.", gauges.accepted_guesses),
            ("engine_steps", "Steps.", gauges.steps),
        ):
            yield self._family(CounterMetricFamily, name, text, number)

    def _family(self, kind: Any, name: str, text: str, number: float) -> Metric:
        family = kind(f"tiny_llm:{name}", text, labels=["model_name"])
        family.add_metric([self._model], number)
        return family

    def _histogram(self, name: str, text: str) -> Histogram:
        histogram = Histogram(
            f"tiny_llm:{name}", text, ["model_name"], registry=self._registry, buckets=SECONDS
        )
        return histogram.labels(self._model)
