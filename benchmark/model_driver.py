"""Drives tiny-llm for benchmarks: load a model, fill its cache, prefill, decode.

Contexts are random keys and values: a step's cost depends on their number, not on their values.
"""

import argparse
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from rich.console import Console

from benchmark.model_costs import ModelCosts
from tiny_llm import (
    BatchingKvCache,
    Qwen3ModelWeek2,
    decode_with_cache,
    load_weights,
    make_sampler,
)
from tiny_llm.generate import dispatch_model
from tiny_llm.models import find_model
from tiny_llm.sampler import sample

from .command import print_json, run_command
from .roofline import Limits, measured_limits
from .systems.worker import token_ids


@dataclass
class Sequences:
    """Sequences decoded together."""

    caches: list[Any]  # batched or single-request KV cache of each layer
    offsets: list[int]
    tokens: list[int]  # next token of each sequence


class CachedModel:
    """Benchmark interface of a Week 2 or 3 model."""

    def __init__(self, model: Any, args: Any):
        self.args = args
        self.model: Qwen3ModelWeek2 = model
        self._sampler = make_sampler(0)

    def prefill(self, tokens: int) -> None:
        """Runs a prompt up to the selection of the first new token."""
        generated = decode_with_cache(
            self.model, token_ids(tokens, self.model.vocab_size), self._sampler
        )
        mx.eval(next(generated))

    def sequences(self, batch: int, context: int, max_new_tokens: int) -> Sequences:
        """Creates sequences with random contexts and capacity for new tokens."""
        layers = self.model.num_hidden_layers
        requests = [self._random_caches(context) for _ in range(batch)]
        caches: list[Any] = requests[0]
        if batch > 1:
            caches = [BatchingKvCache(batch, context + max_new_tokens) for _ in range(layers)]
            for slot, request in enumerate(requests):
                for cache, layer in zip(caches, request, strict=True):
                    cache.add_request(layer, slot)
        ids = token_ids(batch, self.model.vocab_size)
        return Sequences(caches, [context] * batch, ids)

    def step(self, sequences: Sequences) -> None:
        """Decodes one token per sequence, greedily, as `batch_generate` does."""
        offsets = sequences.offsets
        position = offsets[0] if len(offsets) == 1 else offsets
        ids = mx.array(sequences.tokens)[:, None]  # B×1
        logits = self.model.next_token_logits(ids, position, sequences.caches)  # B×V
        tokens: Any = sample(self._sampler, logits).tolist()
        sequences.tokens = tokens
        sequences.offsets = [offset + 1 for offset in offsets]

    def _random_caches(self, context: int) -> list[Any]:
        """One request's caches, with the same random values in every layer."""
        shape = (1, self.args.num_key_value_heads, context, self.args.head_dim)
        key, value = (mx.random.normal(shape).astype(mx.bfloat16) for _ in range(2))
        caches: list[Any] = self.model.create_kv_cache()
        mx.eval([cache.update_and_fetch(key, value)[:2] for cache in caches])
        return caches


class Week2(CachedModel):
    """Week 2's model, with flash attention unless `flash` is False.

    Raises:
        UserError: the model cannot be loaded.
    """

    def __init__(self, name: str, flash: bool | None = None):
        mlx_model, _ = load_weights(name)
        self.flash = flash is not False
        model = dispatch_model(name, mlx_model, 2, enable_flash_attn=self.flash)
        super().__init__(model, mlx_model.args)

    def prompt_chunk(self, tokens: int, offset: int, caches: list[Any]) -> None:
        """Prefills `tokens` tokens of a request whose caches hold `offset` tokens."""
        for cache in caches:
            cache.offset = offset
        ids = mx.array([token_ids(tokens, self.model.vocab_size)])
        mx.eval(self.model.next_token_logits(ids, offset, caches))

    @property
    def attention(self) -> str:
        """Name of the attention implementation, for the report."""
        return "flash attention" if self.flash else "grouped attention"


def run_benchmark(
    name: str,
    parser: argparse.ArgumentParser,
    measure: Callable[[Week2, ModelCosts, Limits, argparse.Namespace], dict[str, Any]],
) -> int:
    """Runs a benchmark of Week 2's model; the last line of output is JSON.

    Args:
        name: prefix of error messages.
        parser: parser with the benchmark's options; the model's options are added.
        measure: measures and prints the table rows; returns them for the JSON.

    Returns:
        The exit status: 0 on success; 1 if a share of the roofline exceeds 100 %; 2 for an error.
    """
    add = parser.add_argument
    add("--model", default="demo", help="model name or folder (default: demo)")
    add(
        "--flash",
        action=argparse.BooleanOptionalAction,
        help="use the flash attention kernel (default)",
    )
    add("--device", choices=("cpu", "gpu"), help="device of the model (default: MLX's choice)")

    def run(args: argparse.Namespace) -> int:
        if args.device is not None:
            mx.set_default_device(mx.cpu if args.device == "cpu" else mx.gpu)
        costs = ModelCosts.from_folder(find_model(args.model, Console(stderr=True)))
        model = Week2(args.model, args.flash)
        is_cpu = mx.default_device() == mx.cpu  # the probe cannot measure a GPU's limits
        with measured_limits() if is_cpu else contextlib.nullcontext(Limits(None)) as limits:
            rows = measure(model, costs, limits, args)
        machine = None if limits.machine is None else str(limits.machine)
        about = {"model": args.model, "attention": model.attention, "machine": machine}
        return print_json({**about, **rows}, limits.exit_status())

    return run_command(name, parser.parse_args(), run)
