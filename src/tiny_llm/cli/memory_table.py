"""Memory table: a model's weights, KV memory and decoding speed on this machine.

Memory is computed from `config.json` and the headers of the weight files, without reading weights;
speed is measured with a few layers. If the model has not been downloaded, the config is enough.
"""

import copy
import math
import statistics
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..engine.engine_args import EngineArgs
from ..engine.execution.kv_memory import KvMemory, plan_kv_memory
from ..engine.execution.paged_model import PagedModel, Span
from ..engine.inputs.sampling_params import SamplingParams
from ..engine.llm import LLM
from ..engine.scheduling.config import MIN_STATE_SLOTS, tokens_in_pages
from ..kv_storage.int8_rows import KV_CACHE_DTYPES, KvCacheDtype
from ..models.checkpoint.dummy import random_checkpoint
from ..models.checkpoint.weights import CheckpointModel
from ..models.families.config import DecoderConfig
from ..models.families.decoder import Decoder
from ..models.hub import has_weights, read_model_config, read_weights
from ..models.loading import evaluate
from ..models.memory import ModelSize, available_memory, model_size, total_memory

SAMPLE_BYTES = 2**28  # minimum weights of the sample, beyond most processor caches
MIN_STEPS, MIN_SECONDS = 5, 0.3  # of a measurement of decoding speed
ENGINE_STEPS = 200
PAGE_SIZE = 128
SHORT_CONTEXT = 1024  # context length of the first tokens/s row


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


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory requirement and token capacity for one KV cache dtype."""

    sizes: Sequence[ModelSize]  # size of the target model, then of the draft model, if any
    memory: KvMemory
    num_tokens: int  # KV cache capacity: tokens of one request

    @classmethod
    def compute(
        cls, args: EngineArgs, sizes: Sequence[ModelSize], available: int
    ) -> "MemoryEstimate":
        """Plans the KV memory as `LLM` does, with `available` bytes before the weights are loaded.

        Raises:
            UserError: see `plan_kv_memory`.
        """
        left = max(0, available - sum(size.weight_bytes for size in sizes))
        memory = plan_kv_memory(sizes, left, *args.memory_limits)
        num_pages = memory.num_pages - math.ceil(MIN_STATE_SLOTS * memory.state_slot_pages)
        step = args.block_size, args.max_num_batched_tokens
        return cls(sizes, memory, tokens_in_pages(memory.groups, num_pages, *step))

    @property
    def weight_bytes(self) -> int:
        return sum(size.weight_bytes for size in self.sizes)

    @property
    def kv_bytes_per_token(self) -> int:
        return sum(size.kv_bytes_per_token for size in self.sizes)

    @property
    def kv_bytes_per_token_past_windows(self) -> int:
        """Bytes that a token keeps once it is before the sliding windows."""
        return sum(
            2 * layer.size * size.kv_element_bytes
            for size in self.sizes
            for layer in size.kv_layers
            if not layer.window
        )

    @property
    def state_bytes(self) -> int:
        """Bytes of a recurrent-state slot; 0 for models without recurrent state."""
        return sum(size.state_bytes for size in self.sizes)

    @property
    def weights_fit(self) -> bool:
        return self.weight_bytes <= total_memory()

    @property
    def longest_prompt(self) -> int:
        """Maximum prompt tokens with one output token, which needs no KV memory."""
        return min(self.memory.max_seq_len - 1, self.num_tokens)


def estimate_memory(args: EngineArgs) -> dict[KvCacheDtype, MemoryEstimate]:
    """Memory estimates by KV cache dtype; `args` has the models' paths.

    Raises:
        UserError: a path contains no model, or an option is incompatible with the model.
    """
    sizes = [
        model_size(Path(cast("str", path)), num_ranks, args.load_format)
        for path, num_ranks in ((args.model, args.tensor_parallel_size), (args.draft_model, 1))
        if path is not None
    ]
    available = available_memory()
    return {
        dtype: MemoryEstimate.compute(
            args, [replace(size, kv_cache_dtype=dtype) for size in sizes], available
        )
        for dtype in KV_CACHE_DTYPES
    }


def print_memory_table(
    console: Console,
    name: str,
    estimates: Mapping[KvCacheDtype, MemoryEstimate],
    speed: DecodeSpeed | None = None,
) -> None:
    """Prints the table, then notes on the machine's memory and on the figures."""
    console.print(memory_table(name, estimates, speed))
    for line in _notes(estimates, speed is not None):
        console.print(line, markup=False, soft_wrap=True)


def memory_table(
    name: str, estimates: Mapping[KvCacheDtype, MemoryEstimate], speed: DecodeSpeed | None = None
) -> Table:
    first = next(iter(estimates.values()))
    table = Table(title=escape(name), title_justify="left")
    table.add_column("--kv-cache-dtype")
    for dtype in estimates:
        activations = str(first.sizes[0].dtype).removeprefix("mlx.core.")
        table.add_column(f"auto ({activations})" if dtype == "auto" else dtype, justify="right")

    def add(label: str, text: Callable[[MemoryEstimate], str]) -> None:
        table.add_row(label, *map(text, estimates.values()))

    with_draft = " with the draft model" if len(first.sizes) > 1 else ""
    add(f"weights{with_draft}", lambda estimate: format_bytes(estimate.weight_bytes))
    add("KV cache per token", lambda estimate: format_bytes(estimate.kv_bytes_per_token))
    if any(group.window for group in first.memory.groups):
        past = "KV cache per token past the window"
        add(past, lambda estimate: format_bytes(estimate.kv_bytes_per_token_past_windows))
    if first.state_bytes:
        add("state per request", lambda estimate: format_bytes(estimate.state_bytes))
    add("context in tokens", lambda estimate: f"{estimate.memory.max_seq_len:,}")
    if not first.weights_fit:
        return table
    add("KV memory", lambda estimate: format_bytes(estimate.memory.num_bytes))
    if first.state_bytes:
        add("states in KV memory", lambda estimate: f"{estimate.memory.num_state_slots:,}")
    add("tokens in KV memory", lambda estimate: f"{estimate.num_tokens:,}")
    add("longest prompt in tokens", lambda estimate: f"{estimate.longest_prompt:,}")
    if speed is not None:
        longest = min(estimate.longest_prompt for estimate in estimates.values())
        for context in sorted({min(SHORT_CONTEXT, longest), longest}):
            speeds = [_format(speed.tokens_per_second(context, dtype)) for dtype in estimates]
            table.add_row(f"tokens/s after {context:,} tokens", *speeds)
    return table


def _notes(estimates: Mapping[KvCacheDtype, MemoryEstimate], has_speed: bool) -> Iterator[str]:
    first = next(iter(estimates.values()))
    total, available = total_memory(), available_memory()
    yield f"memory: {format_bytes(total)} total, {format_bytes(available)} available"
    if not first.weights_fit:
        yield "the weights do not fit in memory; use a smaller model or lower-bit quantization"
        return
    if first.memory.reason:
        yield f"KV memory: {first.memory.reason}; set --kv-cache-bytes to change it"
    if first.state_bytes:
        yield "states and tokens share the KV memory; the table shows the maximum of each"
    if has_speed:
        yield "tokens/s: one request without draft tokens, predicted from measured layers"
    needed = first.weight_bytes + first.memory.num_bytes
    if needed > available:
        missing = format_bytes(needed - available)
        yield f"weights and KV memory exceed the available memory by {missing}"


def format_bytes(number: float) -> str:
    """Formats bytes in decimal units: 2.26 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}" if unit == "GB" else f"{number / size:.1f} {unit}"
    return f"{number:.0f} B"


def _format(tokens_per_second: float) -> str:
    return f"{tokens_per_second:,.1f}" if tokens_per_second < 100 else f"{tokens_per_second:,.0f}"
