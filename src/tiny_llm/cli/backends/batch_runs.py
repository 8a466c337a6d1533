"""Batch runs on the engine, the course's continuous batching, or mlx_lm.

`batch` displays a run and `bench` measures it; both call `step` until `is_done`.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from ...batch import BatchGeneration, Request
from ...engine.scheduling.events import SNAPSHOT_INTERVAL, Recorder, snapshot
from ...engine.scheduling.page_manager import PageCounts
from ...errors import UserError
from ...sampler import Sampler
from ..parsing.arguments import ENGINE
from .local import Checkpoint, build_model, open_llm, sampling_params_from_args


@dataclass
class RequestProgress:
    index: int
    prompt_tokens: int
    prefilled: int = 0  # number of prompt tokens computed so far
    new_tokens: int = 0  # number of output tokens so far, including EOS
    text: str = ""

    @property
    def is_decoding(self) -> bool:
        return self.new_tokens > 0


@dataclass(frozen=True)
class EngineState:
    """Engine counters."""

    pages: PageCounts
    prompt_tokens: int  # prompt tokens of the admitted requests
    cached_tokens: int
    disk_tokens: int  # cached tokens that were read from `--prefix-cache-dir`
    preemptions: int
    num_draft_tokens: int
    num_accepted_tokens: int

    def __str__(self) -> str:
        share = self.cached_tokens / max(self.prompt_tokens, 1)
        disk = f", {self.disk_tokens} of them from disk" if self.disk_tokens else ""
        drafts = f" | draft tokens: {self.num_accepted_tokens} of {self.num_draft_tokens} accepted"
        return (
            f"prefix cache hits: {self.cached_tokens} of {self.prompt_tokens} prompt tokens "
            f"({share:.0%}){disk} | preemptions: {self.preemptions}"
            + (drafts if self.num_draft_tokens else "")
        )


@dataclass(frozen=True)
class BatchProgress:
    """Progress of a batch run up to the last step."""

    waiting: list[int]  # indices of the prompts that have not started or were preempted
    started: list[RequestProgress]
    slots: list[RequestProgress | None]  # None for an idle slot
    # Prompts in prefill without a slot, or prefilled and waiting for one; empty for the engine.
    prefilling: Sequence[RequestProgress] = ()
    engine: EngineState | None = None  # None for runs without the engine


class EngineBatchRun:
    """`BatchRun` on an `LLM`.

    Without `kv_cache_bytes`, the KV cache has room for the longest request `batch_size` times.

    Raises:
        UserError: invalid arguments of `LLM`, or a prompt too long for the KV cache.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        checkpoint: Checkpoint,
        prompts: Sequence[Sequence[int]],
        max_tokens: Sequence[int],
        ignore_eos: bool,
    ):
        file = getattr(args, "record", None)  # `bench` has no such flag
        self.recorder = None if file is None else Recorder(file)
        self._next_snapshot = 0.0  # time at which the next recorded snapshot is due
        longest = max((len(p) + n for p, n in zip(prompts, max_tokens, strict=True)), default=1)
        self._llm = open_llm(
            args,
            checkpoint,
            max_num_seqs=args.batch_size,
            prefill_step=args.prefill_step,
            max_model_len=longest,
            listener=self.recorder,
        )
        if ignore_eos:
            # Every output reaches its maximum length, so allocate all KV memory now.
            self._llm.reserve()
        if self.recorder is not None:
            self.recorder.begin(self._llm.describe())
        self.outputs: dict[int, str] = {}
        # Request id in each displayed slot, assigned here because the engine has no slots.
        self._slots: list[str | None] = [None] * args.batch_size
        self._started: dict[str, RequestProgress] = {}
        for index, (prompt, limit) in enumerate(zip(prompts, max_tokens, strict=True)):
            params = sampling_params_from_args(args, limit, ignore_eos)
            self._llm.add_request(list(prompt), params, request_id=str(index))

    @property
    def is_done(self) -> bool:
        return not self._llm.has_unfinished_requests

    @property
    def peak_memory(self) -> int:
        return self._llm.runner.peak_memory

    def step(self) -> None:
        for output in self._llm.step():
            progress = self._progress(
                output.request_id, len(output.request_output.prompt_token_ids)
            )
            progress.text += output.text
            progress.new_tokens += len(output.token_ids)
            progress.prefilled = progress.prompt_tokens
            if output.finish_reason == "error":
                raise UserError(f"prompt {progress.index}: {output.error}")
            if output.finish_reason is not None:
                self.outputs[progress.index] = progress.text
        self._place_running()
        now = time.monotonic()
        if self.recorder is not None and (self.is_done or now >= self._next_snapshot):
            self.recorder(snapshot(self._llm.scheduler))
            self._next_snapshot = now + SNAPSHOT_INTERVAL

    def progress(self) -> BatchProgress:
        """See `BatchRun.progress`; preempted requests are first in `waiting`."""
        scheduler, statistics = self._llm.scheduler, self._llm.runner.statistics
        disk_cache = self._llm.disk_cache
        engine = EngineState(
            scheduler.pages.counts(scheduler.running),
            scheduler.num_prompt_tokens,
            scheduler.num_cached_tokens,
            0 if disk_cache is None else disk_cache.stats.hit_tokens,
            scheduler.num_preemptions,
            statistics.num_draft_tokens,
            statistics.num_accepted_tokens,
        )
        return BatchProgress(
            waiting=[int(request.request_id) for request in scheduler.waiting],
            started=list(self._started.values()),
            slots=[None if slot is None else self._started[slot] for slot in self._slots],
            engine=engine,
        )

    def _progress(self, request_id: str, prompt_tokens: int) -> RequestProgress:
        return self._started.setdefault(request_id, RequestProgress(int(request_id), prompt_tokens))

    def _place_running(self) -> None:
        running = self._llm.scheduler.running
        ids = {request.request_id for request in running}
        self._slots = [slot if slot in ids else None for slot in self._slots]
        for request in running:
            progress = self._progress(request.request_id, request.num_prompt_tokens)
            progress.prefilled = min(request.num_computed, request.num_prompt_tokens)
            if request.request_id not in self._slots:
                self._slots[self._slots.index(None)] = request.request_id


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
