"""Batch runs on the engine, the course's continuous batching, or mlx_lm.

`batch` displays a run and `bench` measures it; both call `step` until `is_done`.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from ...batch import BatchGeneration, Request
from ...sampler import Sampler
from ..backends.backend import build_model
from ..backends.checkpoint import Checkpoint
from ..parsing.arguments import ENGINE
from .engine_run import BatchProgress, EngineBatchRun, RequestProgress


class BatchRun(Protocol):
    """A batch run over a fixed set of prompts."""

    outputs: dict[int, str]  # text of the finished prompts, by index

    @property
    def is_done(self) -> bool:
        """Whether all prompts are finished."""

    def step(self) -> None:
        """Runs one step."""

    def progress(self) -> BatchProgress:
        """The run's progress as of the last step."""


def open_batch_run(
    args: argparse.Namespace,
    checkpoint: Checkpoint,
    prompts: Sequence[Sequence[int]],
    max_tokens: Sequence[int],
    sampler: Sampler,
    ignore_eos: bool = False,
) -> BatchRun:
    """Opens the batch run selected by `--solution` and `--loader`.

    Args:
        args: flags, checked by `check_batch_arguments`.
        sampler: unused by the engine, which takes the sampling parameters from `args`.
    """
    if args.solution == "mlx":
        return MlxBatchRun(
            checkpoint, prompts, max_tokens, sampler, args.batch_size, args.prefill_step, ignore_eos
        )
    if args.loader == ENGINE:
        return EngineBatchRun(args, checkpoint, prompts, max_tokens, ignore_eos)
    longest = max((len(p) + n for p, n in zip(prompts, max_tokens, strict=True)), default=1)
    return CourseBatchRun(
        BatchGeneration(
            build_model(args, checkpoint),
            checkpoint.tokenizer,
            prompts,
            max_seq_len=longest,
            batch_size=args.batch_size,
            prefill_step=args.prefill_step,
            sampler=sampler,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
        )
    )


class CourseBatchRun:
    """`BatchRun` on `BatchGeneration`, the course's continuous batching."""

    def __init__(self, batch: BatchGeneration):
        self._batch = batch
        self.outputs = batch.outputs

    @property
    def is_done(self) -> bool:
        return self._batch.is_done

    def step(self) -> None:
        self._batch.step()

    def progress(self) -> BatchProgress:
        batch = self._batch
        return BatchProgress(
            waiting=[index for index, _ in batch.waiting],
            started=list(map(_progress, batch.requests.values())),
            slots=[None if request is None else _progress(request) for request in batch.slots],
            prefilling=[] if batch.prefilling is None else [_progress(batch.prefilling)],
        )


def _progress(request: Request) -> RequestProgress:
    prompt_tokens = len(request.prompt_ids)
    prefilled = min(request.offset, prompt_tokens)
    return RequestProgress(
        request.index, prompt_tokens, prefilled, request.num_tokens, request.text
    )


@dataclass
class _MlxRequest:
    progress: RequestProgress
    detokenizer: Any


class MlxBatchRun:
    """`BatchRun` on mlx_lm's `BatchGenerator`, which prefills prompts together."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        prompts: Sequence[Sequence[int]],
        max_tokens: Sequence[int],
        sampler: Sampler,
        batch_size: int,
        prefill_step: int,
        ignore_eos: bool,
    ):
        from mlx_lm.generate import BatchGenerator

        tokenizer = checkpoint.tokenizer
        self._generator = BatchGenerator(
            checkpoint.mlx_model,
            stop_tokens=None if ignore_eos else [[token] for token in tokenizer.eos_token_ids],
            sampler=sampler,
            completion_batch_size=batch_size,
            prefill_batch_size=batch_size,
            prefill_step_size=prefill_step,
        )
        uids = self._generator.insert([list(prompt) for prompt in prompts], list(max_tokens))
        self._requests = {
            uid: _MlxRequest(RequestProgress(index, len(prompt)), tokenizer.detokenizer)
            for index, (uid, prompt) in enumerate(zip(uids, prompts, strict=True))
        }
        self._slots: list[RequestProgress | None] = [None] * batch_size
        self.outputs: dict[int, str] = {}

    @property
    def is_done(self) -> bool:
        return len(self.outputs) == len(self._requests)

    def step(self) -> None:
        """Decodes a token per active request; prefills a chunk per pending prompt."""
        prefills, tokens = self._generator.next()
        for response in prefills:
            self._requests[response.uid].progress.prefilled = response.progress[0]
        for response in tokens:
            self._add_token(self._requests[response.uid], response.token, response.finish_reason)

    def progress(self) -> BatchProgress:
        """See `BatchRun.progress`; mlx_lm has no slots, so `_add_token` assigns them."""
        listed = [request.progress for request in self._requests.values()]
        started = [each for each in listed if each.prefilled > 0]
        return BatchProgress(
            waiting=[each.index for each in listed if each.prefilled == 0],
            started=started,
            slots=self._slots,
            prefilling=[each for each in started if not each.is_decoding],
        )

    def _add_token(self, request: _MlxRequest, token: int, finish_reason: str | None) -> None:
        progress = request.progress
        if not progress.is_decoding:
            if None not in self._slots:
                # mlx_lm prefills prompts even when all slots are in use, so add a slot.
                self._slots.append(None)
            self._slots[self._slots.index(None)] = progress
        progress.new_tokens += 1
        if finish_reason != "stop":
            request.detokenizer.add_token(token)
        if finish_reason is not None:
            request.detokenizer.finalize()
        progress.text = request.detokenizer.text
        if finish_reason is not None:
            self.outputs[progress.index] = progress.text
            self._slots[self._slots.index(progress)] = None


def peak_memory(run: BatchRun) -> int:
    return run.peak_memory if isinstance(run, EngineBatchRun) else mx.get_peak_memory()
