"""Builds the engine's components from the arguments of `LLM`."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import UserError, check_int, short_repr, validate_number
from ..kv_storage.int8_rows import KV_CACHE_DTYPES
from ..models import (
    ACTIVATION_BITS,
    ATTENTION_BACKENDS,
    LOAD_FORMATS,
    ServingModel,
    check_has_mtp,
    load_weights,
    mtp_model,
    serving_model,
)
from ..models.checkpoint.safe_io import model_errors
from ..models.families.decoder import Decoder
from ..models.heads.mtp import MtpDecoder
from ..models.heads.pooling import (
    TASKS,
    Task,
    detect_task,
    pool_embeddings,
    pool_scores,
    score_tokens,
)
from ..models.hub import find_config
from ..models.lora import attach_adapters
from ..models.parallel.decoder import TensorParallelDecoder
from ..models.parallel.launch import current_group
from ..models.tokenizer.detokenizer import with_detokenizer
from ..models.tokenizer.draft_tokenizer import check_same_vocabulary
from .execution.paged_model import PagedModel
from .execution.tp_model import (
    ShardedCheckpoint,
    TensorParallelModel,
    attach_sharded,
    load_sharded,
    make_decoder,
)
from .model_runner import ModelRunner, MtpRunner, PoolingRunner
from .scheduling.config import SchedulerConfig
from .scheduling.events import Listener
from .scheduling.fair_scheduler import FairScheduler
from .scheduling.scheduler import Scheduler
from .spec_decode.draft_model import DraftModel
from .spec_decode.mtp_drafter import MtpDrafter
from .spec_decode.ngram_proposer import MAX_NGRAM_DRAFT_TOKENS, NgramProposer

Model = str | os.PathLike[str] | tuple[Any, Any]


@dataclass(frozen=True)
class LoadedModels:
    """Target and draft model, before their pages are allocated."""

    target: ServingModel
    draft: ServingModel | None  # the draft model, or the target's MTP layer
    tokenizer: Any  # shared by the target and draft models
    tp_checkpoint: ShardedCheckpoint | None  # the target's; None without tensor parallelism

    @property
    def all(self) -> list[ServingModel]:
        return [self.target] if self.draft is None else [self.target, self.draft]


def load_models(
    model: Model,
    draft_model: Model | None,
    tensor_parallel_size: int,
    load_format: str,
    options: Mapping[str, Any],
    task: Task,
    mtp: bool,
) -> LoadedModels:
    """Loads the target and draft models; see `LLM` for the arguments.

    Args:
        options: `Decoder` arguments of the target and draft models.
        mtp: whether to load the target's MTP layer as the draft model.
    """
    check_int("tensor_parallel_size", tensor_parallel_size, 1)
    if task != "generate" and (tensor_parallel_size > 1 or draft_model is not None or mtp):
        raise UserError(
            f"task='{task}' does not support draft_model, speculative='mtp' or "
            "tensor_parallel_size above 1; remove them."
        )
    if tensor_parallel_size > 1:
        if not isinstance(model, str | os.PathLike):
            raise UserError(
                "tensor_parallel_size above 1 does not support a loaded model, because each "
                "process loads its own shard; pass a name or folder."
            )
        model = load_sharded(os.fspath(model), tensor_parallel_size, load_format, mtp=mtp)
    loaded = model[0] if isinstance(model, tuple) else None
    tp_checkpoint = loaded if isinstance(loaded, ShardedCheckpoint) else None
    target, tokenizer, mtp_layer = _load_model(model, load_format, options, task, mtp)
    draft: ServingModel | None = mtp_layer
    if draft_model is not None:
        draft, draft_tokenizer, _ = _load_model(draft_model, load_format, options, task)
        check_same_vocabulary(draft_tokenizer, tokenizer)
    return LoadedModels(target, draft, tokenizer, tp_checkpoint)


def adapter_folders(adapter_path: Any, lora_modules: Any) -> Mapping[str | None, Any]:
    """Returns adapter folders by name; the key None is for `adapter_path`."""
    if lora_modules is None:
        if not isinstance(adapter_path, str | os.PathLike | None):
            raise UserError(f"adapter_path must be a path, got {short_repr(adapter_path)}.")
        return {} if adapter_path is None else {None: adapter_path}
    if adapter_path is not None:
        raise UserError(
            "adapter_path and lora_modules cannot be combined; pass all adapters in lora_modules."
        )
    if not isinstance(lora_modules, Mapping):
        raise UserError(f"lora_modules must map names to folders, got {short_repr(lora_modules)}.")
    for name, path in lora_modules.items():
        if not (isinstance(name, str) and name and isinstance(path, str | os.PathLike)):
            raise UserError(
                f"lora_modules must map names to folders, got {short_repr({name: path})}."
            )
    return lora_modules


def attach_to_target(
    models: LoadedModels, folders: Mapping[str | None, Any]
) -> dict[str | None, int]:
    """Attaches adapters to the target model.

    Returns:
        Adapter indices by name; the key None is for requests without `lora`. −1 means no adapter.
    """
    if folders:
        assert isinstance(models.target, Decoder)
        paths = list(folders.values())
        if models.tp_checkpoint is None:
            attach_adapters(models.target, paths)
        else:
            paths = [os.path.abspath(os.path.expanduser(path)) for path in paths]
            current_group().run(attach_sharded, models.tp_checkpoint, models.target, paths)
    return {None: -1} | {name: index for index, name in enumerate(folders)}


def resolve_task(task: Any, model: Model) -> Task:
    """Resolves the model's task; "auto" detects it from the checkpoint."""
    if task in TASKS:
        return task
    _check_choice("task", task, ("auto", *TASKS))
    if not isinstance(model, str | os.PathLike):
        return "generate"
    with model_errors("the model cannot be loaded"):
        return detect_task(find_config(os.fspath(model), None))


def make_model_runner(
    models: LoadedModels, num_pages: int, num_state_slots: int, task: Task
) -> ModelRunner:
    """Builds the model runner; each model has `num_pages` pages."""
    memory = num_pages, num_state_slots
    target = _paged_model(models.target, *memory)
    if isinstance(models.draft, MtpDecoder):
        drafter = MtpDrafter(_paged_model(models.draft, num_pages))
        mtp_runner = MtpRunner(target, drafter)
        # A discarded step's updates of recurrent states cannot be undone.
        mtp_runner.async_scheduling.enabled = False
        return mtp_runner
    draft = None
    if models.draft is not None:
        draft = DraftModel(PagedModel(models.draft, *memory), target.vocab_size)
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
    # Pooling has no next step; workers need evaluated token ids; for state slots, see above.
    if task != "generate" or models.tp_checkpoint is not None or num_state_slots:
        runner.async_scheduling.enabled = False
    return runner


def make_proposer(
    speculative: str | None, draft_model: Model | None, num_drafts: int | None
) -> NgramProposer | None:
    """Validates speculation options; returns a proposer for "ngram", else None."""
    if num_drafts is not None:
        check_int("num_drafts", num_drafts, 1)
        if draft_model is None and speculative is None:
            raise UserError(
                f"num_drafts={num_drafts} requires draft_model or speculative='ngram' or 'mtp'; "
                "set one of them, or remove num_drafts."
            )
    _check_choice("speculative", speculative, ("ngram", "mtp", None))
    if speculative is not None and draft_model is not None:
        raise UserError(
            f"speculative='{speculative}' and draft_model cannot be combined; remove one of them."
        )
    if speculative != "ngram":
        return None
    return NgramProposer(num_drafts or MAX_NGRAM_DRAFT_TOKENS)


def make_scheduler(
    config: SchedulerConfig,
    listener: Listener | None,
    scheduling_policy: Any,
    step_time_target: float | None,
) -> Scheduler:
    if step_time_target is not None:
        validate_number(
            "step_time_target", step_time_target, 0, math.inf, "a number of seconds > 0", above=True
        )
    _check_choice("scheduling_policy", scheduling_policy, ("fair", "fcfs"))
    if scheduling_policy == "fair":
        return FairScheduler(config, listener, step_time_target)
    if step_time_target is not None:
        raise UserError(
            "step_time_target requires scheduling_policy='fair'; set both, or remove the target."
        )
    return Scheduler(config, listener)


def check_options(
    load_format: Any,
    attention_backend: Any,
    kv_cache_dtype: Any,
    activation_bits: Any,
    listener: Any,
) -> None:
    _check_choice("load_format", load_format, LOAD_FORMATS)
    _check_choice("attention_backend", attention_backend, ATTENTION_BACKENDS)
    _check_choice("kv_cache_dtype", kv_cache_dtype, KV_CACHE_DTYPES)
    _check_choice("activation_bits", activation_bits, ACTIVATION_BITS)
    if kv_cache_dtype == "int8" and attention_backend == "flash":
        raise UserError(
            "attention_backend='flash' does not support kv_cache_dtype='int8'; use 'paged' or "
            "'reference'."
        )
    if not (listener is None or callable(listener)):
        raise UserError(
            f"listener must be a function of one event, or None, got {short_repr(listener)}."
        )


def _check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        *first, last = map(repr, choices)
        allowed = f"{', '.join(first)} or {last}"
        raise UserError(f"{name} must be {allowed}, got {short_repr(value)}.")


def common_window(models: Sequence[ServingModel]) -> int:
    """Returns the largest sliding window; 0 if any layer has full attention."""
    windows = [model.max_window for model in models]
    return max(windows) if all(windows) else 0


def _paged_model(model: ServingModel, num_pages: int, num_state_slots: int = 0) -> PagedModel:
    if isinstance(model, TensorParallelDecoder):
        sizes = num_pages, num_state_slots
        sharded: PagedModel = current_group().run(TensorParallelModel, model, *sizes)
        return sharded
    return PagedModel(model, num_pages, num_state_slots)


def _load_model(
    model: Model, load_format: str, options: Mapping[str, Any], task: Task, mtp: bool = False
) -> tuple[ServingModel, Any, MtpDecoder | None]:
    name = "the model"
    if isinstance(model, str | os.PathLike):
        name = os.fspath(model)
        model = load_weights(name, load_format=load_format, mtp=mtp)
    is_pair = isinstance(model, Sequence) and len(model) == 2
    if not (is_pair and hasattr(model[0], "args") and model[1] is not None):
        raise UserError(
            f"{short_repr(model)} is not a model; pass a name, a folder, or the pair (model, "
            "tokenizer) returned by `load`."
        )
    mlx_model, tokenizer = model
    if isinstance(mlx_model, ShardedCheckpoint):
        if mtp:
            check_has_mtp(name, mlx_model)
        run = current_group().run
        sharded_layer = run(make_decoder, mlx_model, options, True) if mtp else None
        return run(make_decoder, mlx_model, options), with_detokenizer(tokenizer), sharded_layer
    layer = mtp_model(name, mlx_model, **options) if mtp else None
    target = serving_model(name, mlx_model, task=task, **options)
    return target, with_detokenizer(tokenizer), layer
