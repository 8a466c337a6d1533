"""Decoding speed of a model on this machine, predicted from its first layers."""

import copy
import statistics
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ...engine.execution.paged_model import PagedModel, Span
from ...engine.inputs.sampling_params import SamplingParams
from ...engine.llm import LLM
from ...kv_storage.int8_rows import KvCacheDtype
from ...models.checkpoint.dummy import random_checkpoint
from ...models.checkpoint.weights import CheckpointModel
from ...models.families.config import DecoderConfig
from ...models.families.decoder import Decoder
from ...models.gguf.model_files import has_weights, read_model_config, read_weights
from ...models.loading import evaluate

SAMPLE_BYTES = 2**28  # minimum weights of the sample, beyond most processor caches
MIN_STEPS, MIN_SECONDS = 5, 0.3  # of a measurement
ENGINE_STEPS = 200
PAGE_SIZE = 128


class DecodeSpeed:
    """Predicts a request's speed from the step times of the first n and the first 2n layers.

    The difference of these times is the time of n layers; the engine's overhead per step is
    measured with a bundled model. Without weight files, the weights are random.
    """

    def __init__(self, folder: Path):
        config = read_model_config(folder)
        if not has_weights(folder):
            model = random_checkpoint(config)
        else:
            model = read_weights(folder, config)
        self._num_layers = layers = model.args.num_hidden_layers
        n = period = layer_period(model.args)
        while 2 * n < layers and _nbytes(model.layers[: 2 * n]) < SAMPLE_BYTES:
            n += period
        self._counts = (layers,) if 2 * n >= layers else (n, 2 * n)
        self._model = first_layers(model, self._counts[-1])
        evaluate(self._model, None)
        self._engine_seconds = _engine_seconds(model.args.delta_net is not None)

    def tokens_per_second(self, context: int, kv_cache_dtype: KvCacheDtype) -> float:
        """Predicted decoding speed of one request at a context of `context` tokens."""
        seconds = []
        for count in self._counts:
            model = first_layers(self._model, count)
            decoder = Decoder(model, PAGE_SIZE, kv_cache_dtype=kv_cache_dtype)
            seconds.append(_step_seconds(decoder, context))
        per_layer = max(0.0, seconds[-1] - seconds[0]) / self._counts[0]  # noise may be negative
        missing = self._num_layers - self._counts[0]
        return 1 / (self._engine_seconds + seconds[0] + per_layer * missing)


def layer_period(config: DecoderConfig) -> int:
    """Period of the sequence of layer types; the number of layers if it has none."""
    kinds = [
        (config.has_delta_net(i), config.has_experts(i), config.window_of(i))
        for i in range(config.num_hidden_layers)
    ]
    periods = range(1, len(kinds) + 1)
    return next(p for p in periods if all(a == b for a, b in zip(kinds, kinds[p:], strict=False)))


def first_layers(model: CheckpointModel, count: int) -> CheckpointModel:
    """The model without its last layers; shares its arrays."""
    config = replace(model.args, num_hidden_layers=count)
    if config.delta_net is not None:
        layers = tuple(layer for layer in config.delta_net.layers if layer < count)
        config = replace(config, delta_net=replace(config.delta_net, layers=layers))
    shortened = copy.copy(model)
    shortened.args = config
    shortened.model = copy.copy(model.model)
    shortened.model.layers = model.layers[:count]
    return shortened


def _engine_seconds(is_hybrid: bool) -> float:
    """Engine overhead in seconds per decoding step, excluding the model and the sampler."""
    llm = LLM("demo-hybrid" if is_hybrid else "demo", max_num_seqs=1)
    params = SamplingParams(temperature=0, max_tokens=ENGINE_STEPS, ignore_eos=True)
    llm.generate("1", params)
    return (llm.step_seconds - llm.runner.seconds) / ENGINE_STEPS


def _step_seconds(decoder: Decoder, context: int) -> float:
    """Median seconds per decoding step, including greedy sampling."""
    num_pages = context // PAGE_SIZE + 1
    model = PagedModel(decoder, num_pages, 2)
    model.populate(num_pages, 2)
    pages = array("i", range(num_pages))
    seconds: list[float] = []
    slot, token = 0, 1
    while len(seconds) <= MIN_STEPS or sum(seconds) < MIN_SECONDS:
        started = time.perf_counter()
        span = Span([token], context, pages, slot, [(0, 1 - slot)])
        token = mx.argmax(model.logits([span], [0])).item()  # type: ignore[assignment]
        seconds.append(time.perf_counter() - started)
        slot = 1 - slot
    return statistics.median(seconds[1:])


def _nbytes(layers: Sequence[Any]) -> int:
    arrays: Any = tree_flatten(layers)
    return sum(each.nbytes for _, each in arrays if isinstance(each, mx.array))
