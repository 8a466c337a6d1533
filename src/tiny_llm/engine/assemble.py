"""What an engine is made of, from what the caller of `LLM` says: models, their pages, guesses."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, check_whole, shortened
from ..generate import check_same_vocabulary
from ..models import ATTENTION_BACKENDS, LOAD_FORMATS, load_weights, serving_model
from ..models.detokenizer import with_detokenizer
from .draft_model import DraftModel
from .forced_tokens import ForcedTokens, GuessSource
from .paged_model import PagedModel
from .parallel_model import ParallelCheckpoint, ParallelPagedModel, decoder_of, load_in_parallel
from .repetition import MOST_GUESSES, RepeatedText
from .runner import Runner

Model = str | os.PathLike[str] | tuple[Any, Any]


@dataclass(frozen=True)
class Models:
    """The models of an engine, without pages.

    Attributes:
        target: answers.
        draft: guesses, or None.
        tokenizer: of both.
        split: the parts of a target that several processes compute; None if one does.
    """

    target: Any
    draft: Any
    tokenizer: Any
    split: ParallelCheckpoint | None

    @property
    def all(self) -> list[Any]:
        """Those that there are."""
        return [self.target] if self.draft is None else [self.target, self.draft]


def open_models(
    model: Model,
    draft_model: Model | None,
    tensor_parallel_size: int,
    page_size: int,
    load_format: str,
    attention_backend: str,
) -> Models:
    """Loads what is not loaded; see `LLM` for the arguments.

    Raises:
        UserError: a model cannot be loaded, or does not go with the other.
    """
    check_whole("tensor_parallel_size", tensor_parallel_size, 1)
    if tensor_parallel_size > 1:
        model = load_in_parallel(_name_of(model), tensor_parallel_size, load_format)
    options = (page_size, load_format, attention_backend)
    target, tokenizer = _open(model, *options)
    whole = model[0] if isinstance(model, tuple) else None
    split = whole if isinstance(whole, ParallelCheckpoint) else None
    draft = None
    if draft_model is not None:
        draft, small_tokenizer = _open(draft_model, *options)
        check_same_vocabulary(small_tokenizer, tokenizer)
    return Models(target, draft, tokenizer, split)


def make_runner(models: Models, num_pages: int) -> Runner:
    """The runner of these models, each of which gets as many pages."""
    if models.split is not None:
        target: PagedModel = ParallelPagedModel(models.split, models.target, num_pages)
    else:
        target = PagedModel(models.target, num_pages)
    draft = None
    if models.draft is not None:
        draft = DraftModel(PagedModel(models.draft, num_pages), target.vocab_size)
    runner = Runner(target, draft)
    if models.split is not None:
        runner.look_ahead.is_on = False  # the other ranks know no tokens but those sent
    return runner


def guess_sources(
    speculative: str | None, draft_model: Model | None, num_drafts: int | None
) -> list[GuessSource]:
    """Where guesses come from that need no model.

    Raises:
        UserError: arguments that contradict each other.
    """
    if num_drafts is not None:
        check_whole("num_drafts", num_drafts, 1)
        if draft_model is None and speculative is None:
            raise UserError(
                f"num_drafts is {num_drafts}, and nothing guesses; give draft_model or "
                "speculative='ngram', or leave num_drafts out."
            )
    if speculative is None:
        return [ForcedTokens()]
    if speculative != "ngram":
        raise UserError(f"speculative is {shortened(speculative)}; it must be 'ngram' or None.")
    if draft_model is not None:
        raise UserError(
            "speculative is 'ngram', and there is a draft model, which would guess the same "
            "tokens; leave one of the two out."
        )
    return [ForcedTokens(), RepeatedText(num_drafts or MOST_GUESSES)]


def check_choices(load_format: Any, attention_backend: Any, listener: Any) -> None:
    """Refuses a value that is not one of the few allowed.

    Raises:
        UserError: it is refused.
    """
    if load_format not in LOAD_FORMATS:
        raise UserError(f"load_format is {shortened(load_format)}; it must be 'auto' or 'dummy'.")
    if attention_backend not in ATTENTION_BACKENDS:
        raise UserError(
            f"attention_backend is {shortened(attention_backend)}; it must be 'paged', 'flash' or "
            "'reference'."
        )
    if not (listener is None or callable(listener)):
        raise UserError(
            f"listener is {shortened(listener)}; it must be a function of an event, or None."
        )


def pages_within(kv_cache_bytes: float, page_size: int, models: Sequence[Any]) -> int:
    """How many pages the memory holds."""
    if isinstance(kv_cache_bytes, float) and kv_cache_bytes.is_integer():
        kv_cache_bytes = int(kv_cache_bytes)
    check_whole("kv_cache_bytes", kv_cache_bytes, 1)
    there_are = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if kv_cache_bytes > there_are:
        raise UserError(
            f"kv_cache_bytes is {shortened(kv_cache_bytes)}; this machine has {there_are} bytes of "
            "memory: give a part of them."
        )
    page_bytes = page_size * sum(model.kv_bytes_per_token for model in models)
    if kv_cache_bytes < page_bytes:
        raise UserError(
            f"kv_cache_bytes is {kv_cache_bytes}; a page of {page_size} tokens takes {page_bytes}."
        )
    return int(kv_cache_bytes // page_bytes)


def _name_of(model: Model) -> str:
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


def _open(
    model: Model, page_size: int, load_format: str, attention_backend: str
) -> tuple[Any, Any]:
    """The model that serves, and its tokenizer."""
    name = "the model"
    if isinstance(model, str | os.PathLike):
        name = os.fspath(model)
        model = load_weights(name, load_format=load_format)
    is_pair = isinstance(model, Sequence) and len(model) == 2
    if not (is_pair and hasattr(model[0], "args") and model[1] is not None):
        raise UserError(
            f"the model is {shortened(model)}; give a name, a folder, or the pair (model, "
            "tokenizer) that `load` returns."
        )
    mlx_model, tokenizer = model
    if isinstance(mlx_model, ParallelCheckpoint):
        own = decoder_of(mlx_model, page_size, attention_backend)
        return own, with_detokenizer(tokenizer)
    target = serving_model(name, mlx_model, page_size, attention_backend)
    return target, with_detokenizer(tokenizer)
