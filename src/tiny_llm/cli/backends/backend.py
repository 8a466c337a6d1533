"""Streaming generation with the engine, a course model or mlx_lm."""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import TaskNotImplemented, UserError
from ...generate import (
    DecodingLoop,
    GenerationResponse,
    SpeculationStatistics,
    SpeculativeDecoding,
    decode_by_recomputing,
    decode_with_cache,
    dispatch_model,
    resolve_max_tokens,
    stream_generate,
)
from ...generate.loops import PREFILL_STEP
from ...models.tokenizer.tokenizer import check_same_vocabulary
from ...sampler import Sampler
from ..parsing.arguments import ENGINE, LOADERS, check_model_arguments, sampler_from_args
from ..parsing.command import console
from .checkpoint import (
    Checkpoint,
    load_for_solution,
    open_checkpoint,
    open_llm,
    sampling_params_from_args,
)

Stream = Callable[[Sequence[int]], Iterator[GenerationResponse]]


@dataclass(frozen=True)
class Backend:
    """Functions for generation with a loaded model."""

    stream: Stream  # function of the prompt's token ids; yields one response per token
    checkpoint: Checkpoint
    # Returns draft token counters; None without speculative decoding or with mlx_lm.
    speculation_statistics: Callable[[], SpeculationStatistics | None] = lambda: None

    def stream_chat(self, messages: list[dict[str, str]]) -> Iterator[str]:
        """Yields the assistant's message in deltas; reasoning precedes `</think>`."""
        for response in self.stream(self.checkpoint.encode_chat(messages)):
            yield response.text


def open_backend(args: argparse.Namespace) -> Backend:
    is_default_loader = args.loader is None
    check_model_arguments(args)
    sampler = sampler_from_args(args)
    if is_default_loader and args.solution == "ref" and args.loader == "week1":
        console.print(
            "loader: week1 (the C++ extension is not built; `pdm run build-ext` builds it)",
            soft_wrap=True,
        )
    checkpoint = open_checkpoint(args)
    if args.loader == ENGINE:
        engine = EngineBackend(args, checkpoint)
        return Backend(engine.stream, checkpoint, engine.speculation_statistics)
    draft = None
    if args.draft_model is not None:
        draft = Checkpoint(args.draft_model, *load_for_solution(args, args.draft_model))
        check_same_vocabulary(draft.tokenizer, checkpoint.tokenizer)
    if args.solution == "mlx":
        stream = _mlx_stream(checkpoint, draft, sampler, args.max_tokens)
        return Backend(stream, checkpoint)
    return _course_backend(args, checkpoint, draft, sampler)


class EngineBackend:
    """An engine that runs one request at a time; expects validated flags.

    In a chat, the history is read from the prefix cache, so each turn prefills only the new tokens.
    """

    def __init__(self, args: argparse.Namespace, checkpoint: Checkpoint):
        self._args = args
        self._context: int = checkpoint.mlx_model.args.max_position_embeddings
        self._llm = open_llm(args, checkpoint, max_num_seqs=1, prefill_step=PREFILL_STEP)

    def stream(self, prompt_ids: Sequence[int]) -> Iterator[GenerationResponse]:
        """Yields one response per token.

        Raises:
            UserError: the prompt is too long (`resolve_max_tokens`), or a step failed.
        """
        budget = resolve_max_tokens(len(prompt_ids), self._args.max_tokens, self._context)
        started, count = time.perf_counter(), 0
        for output in self._llm.stream(
            list(prompt_ids), sampling_params_from_args(self._args, budget)
        ):
            if output.finish_reason == "error":
                raise UserError(f"{output.error}")
            now = time.perf_counter()
            if count == 0:
                first_token_at = now
            for position, token in enumerate(output.token_ids, start=1):
                count += 1
                # Only the response for a step's last token has text: the whole step's text.
                is_last = position == len(output.token_ids)
                yield GenerationResponse(
                    text=output.text if is_last else "",
                    token=token,
                    finish_reason=output.finish_reason if is_last else None,  # type: ignore
                    prompt_tokens=len(prompt_ids),
                    prompt_tps=len(prompt_ids) / (first_token_at - started),
                    generation_tokens=count,
                    generation_tps=(count - 1) / (now - first_token_at) if count > 1 else 0.0,
                    peak_memory=self._llm.runner.peak_memory / 1e9,
                )

    def speculation_statistics(self) -> SpeculationStatistics | None:
        """Draft token counters over all requests; None without speculative decoding."""
        if self._args.draft_model is None and self._args.speculative is None:
            return None
        return self._llm.runner.statistics


def build_model(args: argparse.Namespace, checkpoint: Checkpoint) -> Any:
    """Builds the course model for the week given by `args.loader`.

    For a learner's model without quantized layers, dequantizes the weights and prints a message.

    Raises:
        TaskNotImplemented: the learner's model is not implemented yet.
    """
    options = {"enable_flash_attn": args.enable_flash_attn} if args.loader == "week2" else {}

    def build() -> Any:
        week = LOADERS[args.loader]
        return dispatch_model(checkpoint.name, checkpoint.mlx_model, week, **options)

    try:
        return build()
    except TaskNotImplemented as missing:
        if args.solution != "mine":
            raise
        from mlx_lm.utils import dequantize_model

        dequantize_model(checkpoint.mlx_model)
        try:
            model = build()
        except TaskNotImplemented:
            raise missing from None
        task = str(missing).partition(" is yours")[0]
        console.print(f"weights: dequantized ({task} is yours to write)", soft_wrap=True)
        return model


def _course_backend(
    args: argparse.Namespace, checkpoint: Checkpoint, draft: Checkpoint | None, sampler: Sampler
) -> Backend:
    model = build_model(args, checkpoint)
    decode: DecodingLoop = decode_by_recomputing if args.loader == "week1" else decode_with_cache
    speculation = None
    if draft is not None:
        decode = speculation = SpeculativeDecoding(build_model(args, draft))

    def stream(prompt_ids: Sequence[int]) -> Iterator[GenerationResponse]:
        tokenizer, max_tokens = checkpoint.tokenizer, args.max_tokens
        return stream_generate(decode, model, tokenizer, prompt_ids, sampler, max_tokens)

    def speculation_statistics() -> SpeculationStatistics | None:
        return None if speculation is None else speculation.statistics

    return Backend(stream, checkpoint, speculation_statistics)


def _mlx_stream(
    checkpoint: Checkpoint, draft: Checkpoint | None, sampler: Sampler, max_tokens: int | None
) -> Stream:
    """Baseline: mlx_lm's generation loop with this package's sampler."""
    import mlx_lm

    mlx_model = checkpoint.mlx_model

    def stream(prompt_ids: Sequence[int]) -> Iterator[GenerationResponse]:
        budget = resolve_max_tokens(
            len(prompt_ids), max_tokens, mlx_model.args.max_position_embeddings
        )
        return mlx_lm.stream_generate(
            mlx_model,
            checkpoint.tokenizer,
            list(prompt_ids),
            max_tokens=budget,
            sampler=sampler,
            draft_model=None if draft is None else draft.mlx_model,
        )

    return stream
