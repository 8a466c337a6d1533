"""Many prompts at once: the engine, continuous batching of Week 2 or 3, or mlx_lm.

All look the same from outside: `step` until `is_done`, and between steps see how far each prompt
is. `batch-main` shows it, `bench` measures it.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...batch import BatchGeneration, Request
from ...sampler import Sampler
from ..backends.backend import build_model
from ..backends.checkpoint import Checkpoint
from ..parsing.arguments import ENGINE
from .engine_run import EngineBatchRun
from .progress import EngineState, RequestProgress


class BatchRun(Protocol):
    """Prompts on their way through a batch.

    Attributes:
        outputs: of those that are finished, by index.
    """

    outputs: dict[int, str]

    @property
    def is_done(self) -> bool:
        """Whether every prompt has its answer."""

    @property
    def waiting(self) -> list[int]:
        """The indices of prompts that were not begun."""

    @property
    def slots(self) -> list[RequestProgress | None]:
        """Who has which place in the batch."""

    @property
    def prefilling(self) -> list[RequestProgress]:
        """Those whose prompt is being computed, and those that then wait for a slot."""

    def all_progress(self) -> Iterator[RequestProgress]:
        """Of every prompt that was begun."""

    def step(self) -> None:
        """As little work as can be done at a time."""

    def state(self) -> EngineState | None:
        """Of the engine, if that is what serves."""


def open_batch_run(
    args: argparse.Namespace,
    checkpoint: Checkpoint,
    prompts: Sequence[Sequence[int]],
    max_tokens: Sequence[int],
    sampler: Sampler,
    ignore_eos: bool = False,
) -> BatchRun:
    """The run that `args` asks for: solution, loader, batch size, prefill step.

    Args:
        args: flags, checked by `check_batch_arguments`.
        checkpoint: the model; its tokenizer turns the answers' tokens into text.
        prompts: token ids.
        max_tokens: how many tokens each answer may have.
        sampler: called for all rows of a step together; the engine makes its own of `args`.
        ignore_eos: go on after end tokens.
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
    """This package's `BatchGeneration`, seen as a `BatchRun`."""

    def __init__(self, batch: BatchGeneration):
        self._batch = batch
        self.outputs = batch.outputs

    @property
    def is_done(self) -> bool:
        """See `BatchRun`."""
        return self._batch.is_done

    @property
    def waiting(self) -> list[int]:
        """See `BatchRun`."""
        return [index for index, _ in self._batch.waiting]

    @property
    def slots(self) -> list[RequestProgress | None]:
        """See `BatchRun`."""
        return [None if request is None else _progress(request) for request in self._batch.slots]

    @property
    def prefilling(self) -> list[RequestProgress]:
        """See `BatchRun`: at most one."""
        request = self._batch.prefilling
        return [] if request is None else [_progress(request)]

    def all_progress(self) -> Iterator[RequestProgress]:
        """See `BatchRun`."""
        return map(_progress, self._batch.requests.values())

    def step(self) -> None:
        """See `BatchGeneration.step`."""
        self._batch.step()

    def state(self) -> None:
        """See `BatchRun`."""


def _progress(request: Request) -> RequestProgress:
    prompt_tokens = len(request.prompt_ids)
    prefilled = min(request.offset, prompt_tokens)
    return RequestProgress(
        request.index, prompt_tokens, prefilled, request.num_tokens, request.text
    )


@dataclass
class _MlxRequest:
    """What mlx_lm's generator told of a prompt so far."""

    progress: RequestProgress
    detokenizer: Any = field(repr=False)


class MlxBatchRun:
    """mlx_lm's `BatchGenerator`, seen as a `BatchRun`. It prefills several prompts at once.

    Args: see `open_batch_run`.
    """

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
        """See `BatchRun`."""
        return len(self.outputs) == len(self._requests)

    @property
    def waiting(self) -> list[int]:
        """See `BatchRun`."""
        every = (request.progress for request in self._requests.values())
        return [one.index for one in every if one.prefilled == 0]

    @property
    def slots(self) -> list[RequestProgress | None]:
        """See `BatchRun`; mlx_lm does not number its places, so these are ours."""
        return list(self._slots)

    @property
    def prefilling(self) -> list[RequestProgress]:
        """See `BatchRun`."""
        return [one for one in self.all_progress() if not one.is_decoding]

    def all_progress(self) -> Iterator[RequestProgress]:
        """See `BatchRun`."""
        every = (request.progress for request in self._requests.values())
        return (one for one in every if one.prefilled > 0)

    def step(self) -> None:
        """A token for every active request, and a chunk of every prompt that is prefilled."""
        prefills, tokens = self._generator.next()
        for response in prefills:
            self._requests[response.uid].progress.prefilled = response.progress[0]
        for response in tokens:
            self._add_token(self._requests[response.uid], response.token, response.finish_reason)

    def state(self) -> None:
        """See `BatchRun`."""

    def _add_token(self, request: _MlxRequest, token: int, finish_reason: str | None) -> None:
        one = request.progress
        if not one.is_decoding:
            if None not in self._slots:
                # Prompts that it prefilled meanwhile join beyond the batch size.
                self._slots.append(None)
            self._slots[self._slots.index(None)] = one
        one.new_tokens += 1
        if finish_reason != "stop":
            request.detokenizer.add_token(token)
        if finish_reason is not None:
            request.detokenizer.finalize()
        one.text = request.detokenizer.text
        if finish_reason is not None:
            self.outputs[one.index] = one.text
            self._slots[self._slots.index(one)] = None
