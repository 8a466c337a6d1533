"""Builds the engine's components from the arguments of `LLM`."""

import logging
import os
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import mlx.core as mx

from ..errors import UserError, short_repr
from ..kv_storage.page_store import HEADER_BYTES, PageStore
from ..models import check_has_mtp, load_weights, mtp_model, serving_model
from ..models.checkpoint.safe_io import model_errors
from ..models.families.decoder import Decoder
from ..models.hub import find_config
from ..models.lora_adapters import attach_adapters
from ..models.output_heads import (
    MtpDecoder,
    Task,
    detect_task,
    pool_embeddings,
    pool_scores,
    score_tokens,
)
from ..models.parallel.decoder import TensorParallelDecoder, TensorParallelMtpDecoder
from ..models.parallel.launch import current_group
from ..models.tokenizer.chat_template import set_chat_template
from ..models.tokenizer.tokenizer import check_same_vocabulary, with_detokenizer
from .engine_args import EngineArgs, Model, StrPath
from .execution.disk_tier import DiskCache, fingerprint
from .execution.kv_memory import KvMemory
from .execution.paged_model import ROW_KINDS, PagedModel, Span
from .execution.tp_model import ShardedCheckpoint, TensorParallelModel, load_sharded, make_decoder
from .model_runner import ModelRunner, MtpRunner, PoolingRunner
from .scheduling.config import SchedulerConfig
from .scheduling.fair_scheduler import FairScheduler
from .scheduling.scheduler import Scheduler
from .spec_decode.draft_model import DraftModel, MtpDrafter

log = logging.getLogger("tiny_llm.engine")

DEFAULT_DISK_BYTES = 10**10


@dataclass(frozen=True)
class LoadedModels:
    """Target and draft model, before their pages are allocated."""

    target: Decoder
    draft: Decoder | None  # the draft model, or the target's MTP layer
    tokenizer: Any  # shared by the target and draft models

    @property
    def all(self) -> list[Decoder]:
        return [self.target] if self.draft is None else [self.target, self.draft]


def load_models(args: EngineArgs) -> LoadedModels:
    """Loads the target and draft models; `args.task` must not be "auto"."""
    model, mtp = args.model, args.speculative == "mtp"
    if args.tensor_parallel_size > 1:
        name = os.fspath(cast("StrPath", model))
        model = load_sharded(name, args.tensor_parallel_size, args.load_format, mtp)
    target, tokenizer, mtp_layer = _load_model(model, args, mtp)
    if args.chat_template is not None:
        set_chat_template(tokenizer, args.chat_template)
    draft: Decoder | None = mtp_layer
    if args.draft_model is not None:
        draft, draft_tokenizer, _ = _load_model(args.draft_model, args)
        check_same_vocabulary(draft_tokenizer, tokenizer)
    return LoadedModels(target, draft, tokenizer)


def attach_lora_adapters(
    models: LoadedModels, folders: Mapping[str | None, Any]
) -> dict[str | None, int]:
    """Attaches LoRA adapters to the target model.

    Returns:
        Adapter indices by name; the key None is for requests without `lora`. −1 means no adapter.
    """
    if folders and not isinstance(models.target, TensorParallelDecoder):  # else `make_decoder` does
        attach_adapters(models.target, list(folders.values()))
    return {None: -1} | {name: index for index, name in enumerate(folders)}


def resolve_task(task: Task | Literal["auto"], model: Model) -> Task:
    """Resolves the model's task; "auto" detects it from the checkpoint."""
    if task != "auto":
        return task
    if not isinstance(model, str | os.PathLike):
        return "generate"
    with model_errors("the model cannot be loaded"):
        return detect_task(find_config(os.fspath(model), None))


def make_model_runner(args: EngineArgs, models: LoadedModels, memory: KvMemory) -> ModelRunner:
    """Builds the model runner, with the same number of KV pages for each model."""
    num_pages, num_slots, task = memory.num_pages, memory.num_state_slots, args.task
    target = _paged_model(models.target, num_pages, num_slots, memory.layouts[0])
    if isinstance(models.draft, MtpDecoder):
        drafter = MtpDrafter(_paged_model(models.draft, num_pages, 0, memory.layouts[1]))
        mtp_runner = MtpRunner(target, drafter)
        # Async scheduling may discard a step, whose updates of recurrent states cannot be undone.
        mtp_runner.async_scheduling.enabled = False
        return mtp_runner
    draft = None
    if models.draft is not None:
        paged_draft = PagedModel(models.draft, num_pages, num_slots, memory.layouts[1])
        draft = DraftModel(paged_draft, target.vocab_size)
    if task == "generate":
        runner = ModelRunner(target, draft)
    else:
        pool: Callable[..., Any] = pool_embeddings
        if task == "score":
            try:
                no_token, yes_token = score_tokens(models.tokenizer)
            except ValueError as error:
                raise UserError(f"the model cannot score documents: {error}.") from error
            pool = partial(pool_scores, no_token=no_token, yes_token=yes_token)
        runner = PoolingRunner(target, pool=pool)
    # Pooling has no next step, tensor-parallel workers need evaluated token ids, and updates of
    # recurrent states cannot be undone.
    if task != "generate" or isinstance(target, TensorParallelModel) or num_slots:
        runner.async_scheduling.enabled = False
    return runner


def make_scheduler(args: EngineArgs, config: SchedulerConfig) -> Scheduler:
    if args.scheduling_policy == "fair":
        return FairScheduler(config, args.listener, args.step_time_target)
    return Scheduler(config, args.listener)


def make_disk_cache(
    directory: str | os.PathLike[str] | None,
    max_bytes: float | None,
    scheduler: Scheduler,
    models: Sequence[PagedModel],
) -> DiskCache | None:
    """Opens the disk cache; None without a directory, with an unusable one, or with a slow disk."""
    if directory is None:
        return None
    max_bytes = max_bytes or DEFAULT_DISK_BYTES
    row_bytes = {kind: sum(model.row_bytes(kind) for model in models) for kind in ROW_KINDS}
    block_bytes = row_bytes["page"] * max(group.num_pages for group in scheduler.config.kv_groups)
    num_bytes = HEADER_BYTES + max(block_bytes, row_bytes["state"])
    if max_bytes < num_bytes:
        raise UserError(
            f"prefix_cache_disk_bytes must be at least {num_bytes} (a page of "
            f"{scheduler.config.page_size} tokens or a recurrent state), got {max_bytes}."
        )
    workers = [other for model in models for other in model.worker_fingerprints()]
    root = fingerprint((model.model for model in models), workers)
    try:
        store = PageStore(Path(os.path.expanduser(directory)), int(max_bytes))
        read_seconds = store.read_seconds(row_bytes["page"] * scheduler.config.block_pages)
    except OSError as error:
        reason = f"cannot use {directory} ({error})"
    else:
        page_seconds = _page_seconds(models, scheduler.config)
        if read_seconds < page_seconds:
            return DiskCache(store, scheduler, models, row_bytes, root)
        reason = (
            f"reading a page from {directory} takes {read_seconds:.2g} s, computing it "
            f"{page_seconds:.2g} s"
        )
    log.warning("disk prefix cache: %s; continuing without it", reason)
    return None


def _page_seconds(models: Sequence[PagedModel], config: SchedulerConfig) -> float:
    """Measures the time to compute a page; overwrites the first pages."""
    max_blocks = config.num_pages // config.block_pages
    num_blocks = max(1, min(config.max_num_batched_tokens // config.page_size, max_blocks, 2))
    num_tokens = min(num_blocks * config.page_size, config.max_num_batched_tokens)
    span = Span([0] * num_tokens, 0, array("i", range(num_blocks * config.block_pages)))
    seconds = 0.0
    for model in models:
        mx.eval(model.logits([span], [0]))  # warm-up
        started = time.perf_counter()
        mx.eval(model.logits([span], [0]))
        seconds += time.perf_counter() - started
    return seconds / num_tokens * config.page_size


def _paged_model(model: Decoder, *sizes: Any) -> PagedModel:
    if isinstance(model, TensorParallelDecoder):
        return current_group().run(TensorParallelModel, model, *sizes)
    return PagedModel(model, *sizes)


def _load_model(
    model: Model, args: EngineArgs, mtp: bool = False
) -> tuple[Decoder, Any, MtpDecoder | None]:
    name = "the model"
    if isinstance(model, str | os.PathLike):
        name = os.fspath(model)
        model = load_weights(name, load_format=args.load_format, mtp=mtp)
    is_pair = isinstance(model, Sequence) and len(model) == 2
    if not (is_pair and hasattr(model[0], "args") and model[1] is not None):
        raise UserError(
            f"{short_repr(model)} is not a model; pass a name, a folder, or the pair (model, "
            "tokenizer) returned by `load`."
        )
    mlx_model, tokenizer = model
    options: dict[str, Any] = {
        "page_size": args.block_size,
        "attention_backend": args.attention_backend,
        "kv_cache_dtype": args.kv_cache_dtype,
        "activation_bits": args.activation_bits,
    }
    layer: Any = None
    if isinstance(mlx_model, ShardedCheckpoint):
        make = partial(current_group().run, make_decoder)
        if mtp:
            check_has_mtp(name, mlx_model)
            layer = make(TensorParallelMtpDecoder, mlx_model, **options)
        folders = map(os.path.expanduser, args.adapter_folders.values())
        adapters = list(map(os.path.abspath, folders))
        target: Decoder = make(TensorParallelDecoder, mlx_model, adapters, **options)
    else:
        layer = mtp_model(name, mlx_model, **options) if mtp else None
        target = serving_model(name, mlx_model, task=cast("Task", args.task), **options)
    return target, with_detokenizer(tokenizer), layer
