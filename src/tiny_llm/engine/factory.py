"""What an engine is made of, from what the caller of `LLM` says: models, their pages, guesses."""

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
from .spec_decode.grammar_proposer import DraftProposer, GrammarProposer
from .spec_decode.ngram_proposer import MAX_NGRAM_DRAFT_TOKENS, NgramProposer

Model = str | os.PathLike[str] | tuple[Any, Any]


@dataclass(frozen=True)
class LoadedModels:
    """The models of an engine, without pages.

    Attributes:
        target: answers.
        draft: guesses, or None.
        tokenizer: of both.
        tp_checkpoint: the parts of a target that several processes compute; None if one does.
    """

    target: ServingModel
    draft: ServingModel | None
    tokenizer: Any
    tp_checkpoint: ShardedCheckpoint | None

    @property
    def all(self) -> list[ServingModel]:
        """Those that there are."""
        return [self.target] if self.draft is None else [self.target, self.draft]


def load_models(
    model: Model,
    draft_model: Model | None,
    tensor_parallel_size: int,
    page_size: int,
    load_format: str,
    attention_backend: str,
) -> LoadedModels:
    """Loads what is not loaded; see `LLM` for the arguments.

    Raises:
        UserError: a model cannot be loaded, or does not go with the other.
    """
    check_int("tensor_parallel_size", tensor_parallel_size, 1)
    if tensor_parallel_size > 1:
        model = load_sharded(_checkpoint_name(model), tensor_parallel_size, load_format)
    options = (page_size, load_format, attention_backend)
    target, tokenizer = _load_model(model, *options)
    whole = model[0] if isinstance(model, tuple) else None
    tp_checkpoint = whole if isinstance(whole, ShardedCheckpoint) else None
    draft = None
    if draft_model is not None:
        draft, small_tokenizer = _load_model(draft_model, *options)
        check_same_vocabulary(small_tokenizer, tokenizer)
    return LoadedModels(target, draft, tokenizer, tp_checkpoint)


def make_model_runner(models: LoadedModels, num_pages: int) -> ModelRunner:
    """The runner of these models, each of which gets as many pages."""
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
        runner.async_scheduling.enabled = False  # the other ranks know no tokens but those sent
    return runner


def make_proposers(
    speculative: str | None, draft_model: Model | None, num_drafts: int | None
) -> list[DraftProposer]:
    """Where guesses come from that need no model.

    Raises:
        UserError: arguments that contradict each other.
    """
    if num_drafts is not None:
        check_int("num_drafts", num_drafts, 1)
        if draft_model is None and speculative is None:
            raise UserError(
                f"num_drafts is {num_drafts}, and nothing guesses; give draft_model or "
                "speculative='ngram', or leave num_drafts out."
            )
    if speculative is None:
        return [GrammarProposer()]
    if speculative != "ngram":
        raise UserError(f"speculative is {short_repr(speculative)}; it must be 'ngram' or None.")
    if draft_model is not None:
        raise UserError(
            "speculative is 'ngram', and there is a draft model, which would guess the same "
            "tokens; leave one of the two out."
        )
    return [GrammarProposer(), NgramProposer(num_drafts or MAX_NGRAM_DRAFT_TOKENS)]


def check_options(load_format: Any, attention_backend: Any, listener: Any) -> None:
    """Refuses a value that is not one of the few allowed.

    Raises:
        UserError: it is refused.
    """
    if load_format not in LOAD_FORMATS:
        raise UserError(f"load_format is {short_repr(load_format)}; it must be 'auto' or 'dummy'.")
    if attention_backend not in ATTENTION_BACKENDS:
        raise UserError(
            f"attention_backend is {short_repr(attention_backend)}; it must be 'paged', 'flash' or "
            "'reference'."
        )
    if not (listener is None or callable(listener)):
        raise UserError(
            f"listener is {short_repr(listener)}; it must be a function of an event, or None."
        )


def num_kv_pages(kv_cache_bytes: float, page_size: int, models: Sequence[ServingModel]) -> int:
    """How many pages the memory holds."""
    if isinstance(kv_cache_bytes, float) and kv_cache_bytes.is_integer():
        kv_cache_bytes = int(kv_cache_bytes)
    check_int("kv_cache_bytes", kv_cache_bytes, 1)
    there_are = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if kv_cache_bytes > there_are:
        raise UserError(
            f"kv_cache_bytes is {short_repr(kv_cache_bytes)}; this machine has {there_are} bytes "
            "of memory: give a part of them."
        )
    page_bytes = page_size * sum(model.kv_bytes_per_token for model in models)
    if kv_cache_bytes < page_bytes:
        raise UserError(
            f"kv_cache_bytes is {kv_cache_bytes}; a page of {page_size} tokens takes {page_bytes}."
        )
    return int(kv_cache_bytes // page_bytes)


def _checkpoint_name(model: Model) -> str:
    """The name of a model that several processes are to load.

    Raises:
        UserError: it is loaded already.
    """
    if not isinstance(model, str | os.PathLike):
        raise UserError(
            "tensor_parallel_size is more than 1, and the model is loaded already; give its name "
            "or folder, of which each process loads its part."
        )
    return os.fspath(model)


def _load_model(
    model: Model, page_size: int, load_format: str, attention_backend: str
) -> tuple[ServingModel, Any]:
    """The model that serves, and its tokenizer."""
    name = "the model"
    if isinstance(model, str | os.PathLike):
        name = os.fspath(model)
        model = load_weights(name, load_format=load_format)
    is_pair = isinstance(model, Sequence) and len(model) == 2
    if not (is_pair and hasattr(model[0], "args") and model[1] is not None):
        raise UserError(
            f"the model is {short_repr(model)}; give a name, a folder, or the pair (model, "
            "tokenizer) that `load` returns."
        )
    mlx_model, tokenizer = model
    if isinstance(mlx_model, ShardedCheckpoint):
        own = make_decoder(mlx_model, page_size, attention_backend)
        return own, with_detokenizer(tokenizer)
    target = serving_model(name, mlx_model, page_size, attention_backend)
    return target, with_detokenizer(tokenizer)
