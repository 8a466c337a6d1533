"""Builds the engine's parts from the arguments of `LLM`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, check_int, short_repr
from ..generate import check_same_vocabulary
from ..models import (
    ATTENTION_BACKENDS,
    LOAD_FORMATS,
    ServingModel,
    load_weights,
    serving_model,
)
from ..models.parallel.decoder import TensorParallelDecoder
from ..models.tokenizer.detokenizer import with_detokenizer
from .execution.paged_model import PagedModel
from .execution.tp_model import ShardedCheckpoint, TensorParallelModel, load_sharded, make_decoder
from .model_runner import ModelRunner
from .spec_decode.draft_model import DraftModel
from .spec_decode.grammar_proposer import GrammarProposer
from .spec_decode.ngram_proposer import MAX_NGRAM_DRAFT_TOKENS, NgramProposer
from .spec_decode.proposer import DraftProposer

Model = str | os.PathLike[str] | tuple[Any, Any]


@dataclass(frozen=True)
class LoadedModels:
    """The models of an engine, without pages.

    Attributes:
        target: the target model.
        draft: the draft model, or None.
        tokenizer: tokenizer of both.
        tp_checkpoint: the target's shards with tensor parallelism; None in a single process.
    """

    target: ServingModel
    draft: ServingModel | None
    tokenizer: Any
    tp_checkpoint: ShardedCheckpoint | None

    @property
    def all(self) -> list[ServingModel]:
        """The target model, then the draft model if there is one."""
        return [self.target] if self.draft is None else [self.target, self.draft]


def load_models(
    model: Model,
    draft_model: Model | None,
    tensor_parallel_size: int,
    page_size: int,
    load_format: str,
    attention_backend: str,
) -> LoadedModels:
    """Loads target and draft model; see `LLM` for the arguments.

    Raises:
        UserError: a model cannot be loaded, or the vocabularies differ.
    """
    check_int("tensor_parallel_size", tensor_parallel_size, 1)
    if tensor_parallel_size > 1:
        model = load_sharded(_checkpoint_name(model), tensor_parallel_size, load_format)
    options = (page_size, load_format, attention_backend)
    target, tokenizer = _load_model(model, *options)
    loaded = model[0] if isinstance(model, tuple) else None
    tp_checkpoint = loaded if isinstance(loaded, ShardedCheckpoint) else None
    draft = None
    if draft_model is not None:
        draft, draft_tokenizer = _load_model(draft_model, *options)
        check_same_vocabulary(draft_tokenizer, tokenizer)
    return LoadedModels(target, draft, tokenizer, tp_checkpoint)


def make_model_runner(models: LoadedModels, num_pages: int) -> ModelRunner:
    """Builds the model runner; target and draft get `num_pages` pages each."""
    if models.tp_checkpoint is not None:
        assert isinstance(models.target, TensorParallelDecoder)
        target: PagedModel = TensorParallelModel(models.tp_checkpoint, models.target, num_pages)
    else:
        target = PagedModel(models.target, num_pages)
    draft = None
    if models.draft is not None:
        draft = DraftModel(PagedModel(models.draft, num_pages), target.vocab_size)
    runner = ModelRunner(target, draft)
    if models.tp_checkpoint is not None:
        runner.async_scheduling.enabled = False  # the other ranks need the token ids
    return runner


def make_proposers(
    speculative: str | None, draft_model: Model | None, num_drafts: int | None
) -> list[DraftProposer]:
    """Builds the model-free draft token proposers.

    Raises:
        UserError: the arguments conflict.
    """
    if num_drafts is not None:
        check_int("num_drafts", num_drafts, 1)
        if draft_model is None and speculative is None:
            raise UserError(
                f"num_drafts={num_drafts} requires draft_model or speculative='ngram'; give one of "
                "them, or leave num_drafts out."
            )
    if speculative is None:
        return [GrammarProposer()]
    if speculative != "ngram":
        raise UserError(f"speculative must be 'ngram' or None, got {short_repr(speculative)}.")
    if draft_model is not None:
        raise UserError(
            "speculative='ngram' and draft_model cannot be combined; leave one of them out."
        )
    return [GrammarProposer(), NgramProposer(num_drafts or MAX_NGRAM_DRAFT_TOKENS)]


def check_options(load_format: Any, attention_backend: Any, listener: Any) -> None:
    """Validates the enumerated options and the listener.

    Raises:
        UserError: a value is not allowed.
    """
    if load_format not in LOAD_FORMATS:
        raise UserError(f"load_format must be 'auto' or 'dummy', got {short_repr(load_format)}.")
    if attention_backend not in ATTENTION_BACKENDS:
        raise UserError(
            "attention_backend must be 'paged', 'flash' or 'reference', got "
            f"{short_repr(attention_backend)}."
        )
    if not (listener is None or callable(listener)):
        raise UserError(
            f"listener must be a function of one event, or None, got {short_repr(listener)}."
        )


def num_kv_pages(kv_cache_bytes: float, page_size: int, models: Sequence[ServingModel]) -> int:
    """Returns the number of pages that `kv_cache_bytes` holds."""
    if isinstance(kv_cache_bytes, float) and kv_cache_bytes.is_integer():
        kv_cache_bytes = int(kv_cache_bytes)
    check_int("kv_cache_bytes", kv_cache_bytes, 1)
    total_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if kv_cache_bytes > total_bytes:
        raise UserError(
            f"kv_cache_bytes must not exceed the memory, got {short_repr(kv_cache_bytes)}; this "
            f"machine has {total_bytes} bytes."
        )
    page_bytes = page_size * sum(model.kv_bytes_per_token for model in models)
    if kv_cache_bytes < page_bytes:
        raise UserError(
            f"kv_cache_bytes must be at least {page_bytes}, a page of {page_size} tokens, got "
            f"{kv_cache_bytes}."
        )
    return int(kv_cache_bytes // page_bytes)


def _checkpoint_name(model: Model) -> str:
    """Returns the name or folder of a model to shard.

    Raises:
        UserError: the model is already loaded.
    """
    if not isinstance(model, str | os.PathLike):
        raise UserError(
            "the model is already loaded, but each of tensor_parallel_size processes loads its own "
            "shard; give a name or folder."
        )
    return os.fspath(model)


def _load_model(
    model: Model, page_size: int, load_format: str, attention_backend: str
) -> tuple[ServingModel, Any]:
    """Returns the serving model and its tokenizer."""
    name = "the model"
    if isinstance(model, str | os.PathLike):
        name = os.fspath(model)
        model = load_weights(name, load_format=load_format)
    is_pair = isinstance(model, Sequence) and len(model) == 2
    if not (is_pair and hasattr(model[0], "args") and model[1] is not None):
        raise UserError(
            f"{short_repr(model)} is not a model; give a name, a folder, or the pair (model, "
            "tokenizer) that `load` returns."
        )
    mlx_model, tokenizer = model
    if isinstance(mlx_model, ShardedCheckpoint):
        decoder = make_decoder(mlx_model, page_size, attention_backend)
        return decoder, with_detokenizer(tokenizer)
    target = serving_model(name, mlx_model, page_size, attention_backend)
    return target, with_detokenizer(tokenizer)
