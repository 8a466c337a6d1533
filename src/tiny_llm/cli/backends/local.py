"""Local backends: generation with the engine, a course model or mlx_lm."""

import argparse
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ... import kernels
from ...engine.engine_args import EngineArgs
from ...engine.execution.tp_model import load_sharded
from ...engine.inputs.limits import encode_text
from ...engine.inputs.prompts import ChatOptions, encode_prompt
from ...engine.inputs.sampling_params import SamplingParams
from ...engine.llm import LLM
from ...engine.scheduling.config import Listener
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
from ...models import default_model, load, load_weights
from ...models.tokenizer.tokenizer import check_same_vocabulary
from ...sampler import Sampler
from ..parsing.arguments import (
    ENGINE,
    LOADERS,
    check_model_arguments,
    given_options,
    sampler_from_args,
)
from ..parsing.command import console


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model, independent of the implementation that runs it."""

    name: str
    mlx_model: Any
    tokenizer: Any
    enable_thinking: bool = False

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Encodes a conversation up to the start of the assistant's next turn.

        Without a chat template, the messages' text is joined with newlines.

        Raises:
            UserError: the template failed, or the prompt exceeds the context length.
        """
        max_tokens = self.mlx_model.args.max_position_embeddings
        if not self.tokenizer.has_chat_template:
            text = "\n".join(message["content"] for message in messages)
            return encode_text(self.tokenizer, "the prompt", text, max_tokens)
        chat = ChatOptions(self.enable_thinking)
        return encode_prompt(self.tokenizer, messages, chat, max_tokens)


def open_checkpoint(args: argparse.Namespace) -> Checkpoint:
    """Selects the device, prints the model's name and loads the model.

    Raises:
        UserError: see `set_device`, `models.load` and `load_sharded`.
    """
    set_device(args.device)
    name, reason = (args.model, None) if args.model is not None else default_model()
    console.print(f"model: {name}" + (f" ({reason})" if reason else ""), soft_wrap=True)
    mtp = args.speculative == "mtp"
    if args.tensor_parallel_size > 1:  # only for the engine; see `check_model_arguments`
        options = args.tensor_parallel_size, args.load_format or "auto", mtp
        mlx_model, tokenizer = load_sharded(name, *options)
    else:
        mlx_model, tokenizer = load_for_solution(args, name, mtp)
    enable_thinking = getattr(args, "enable_thinking", False)  # `bench` has no such flag
    if enable_thinking and not tokenizer.has_thinking:
        console.print("the model has no thinking mode: --enable-thinking is ignored")
        enable_thinking = False
    return Checkpoint(name, mlx_model, tokenizer, enable_thinking)


def load_for_solution(args: argparse.Namespace, name: str, mtp: bool = False) -> tuple[Any, Any]:
    """Loads weights and tokenizer for `args.solution`; `mtp`: see `load_weights`.

    The solution `ref` and the engine need only the weights; a learner's model may call mlx_lm's.
    """
    if args.load_format == "dummy":
        return load_weights(name, console, "dummy", mtp=mtp)
    if args.solution != "ref" and args.loader != ENGINE:
        return load(name, console)
    return load_weights(name, console, mtp=mtp)


def set_device(name: str | None) -> None:
    """Sets the device to "cpu" or "gpu"; None keeps MLX's default.

    Raises:
        UserError: the name is "gpu", but MLX found no GPU.
    """
    if name is None:
        return
    if name == "cpu":
        kernels.use_cpu()
    elif kernels.computes_on_cpu():
        if not mx.is_available(mx.Device(mx.gpu)):
            raise UserError("--device gpu: MLX found no GPU on this machine; omit the flag.")
        mx.set_default_device(mx.gpu)


def open_llm(
    args: argparse.Namespace,
    checkpoint: Checkpoint,
    *,
    max_num_seqs: int,
    prefill_step: int,
    max_model_len: int | None = None,
    listener: Listener | None = None,
) -> LLM:
    """Builds an `LLM` from the checkpoint and the draft model given by the flags.

    `prefill_step` is the number of prompt tokens per step, in addition to the decode tokens.
    """
    options: dict[str, Any] = given_options(args, EngineArgs)
    options["tensor_parallel_size"] = 1  # the checkpoint is already sharded
    if args.draft_model is not None:
        options["draft_model"] = load_for_solution(args, args.draft_model)
    max_drafts = EngineArgs("", **options).max_drafts
    return LLM(
        (checkpoint.mlx_model, checkpoint.tokenizer),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs * (1 + max_drafts) + prefill_step,
        max_model_len=max_model_len,
        seed=secrets.randbits(63),  # for requests without a seed
        listener=listener,
        **options,
    )


def sampling_params_from_args(
    args: argparse.Namespace, max_tokens: int | None, ignore_eos: bool = False
) -> SamplingParams:
    """Sampling parameters from the flags; greedy if there are none (`bench`)."""
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=getattr(args, "sampler_temp", 0.0),
        top_p=getattr(args, "sampler_top_p", None) or 1.0,
        top_k=getattr(args, "sampler_top_k", None) or 0,
        seed=getattr(args, "seed", None),
        ignore_eos=ignore_eos,
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
