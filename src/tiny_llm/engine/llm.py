"""`LLM`: the engine as its users see it.

    llm = LLM("demo")
    for output in llm.generate(["RoPE is", "Paged attention is"], SamplingParams(max_tokens=20)):
        print(output.text)

One thread drives an `LLM`.
"""

import os
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import Progress

from ..errors import UserError
from ..generate import check_same_vocabulary
from ..models import dispatch_model, load_weights
from ..models.detokenizer import with_detokenizer
from . import prompts as prompt_forms
from .core import EngineCore
from .draft_model import DraftModel
from .events import Listener
from .outputs import CompletionOutput, RequestMetrics, RequestOutput, StreamOutput
from .paged_model import PagedModel
from .prompts import Prompt, Prompts
from .runner import Runner
from .sampling_params import SamplingParams, check_whole, checked_seed
from .scheduler import Scheduler
from .step import SchedulerConfig

Model = str | os.PathLike[str] | tuple[Any, Any]
Params = SamplingParams | Sequence[SamplingParams] | None

DEFAULT_KV_CACHE_BYTES = 2**29


class LLM(EngineCore):
    """A model that serves many requests at once, within a budget of memory.

    A request's tokens depend on its prompt, its parameters and the model alone: not on the other
    requests, nor on any argument here but `seed`, and on that only if the request has no seed of
    its own.

    Args:
        model: a short name, a hub id, a folder, or what `load_weights` or `load` returned.
        kv_cache_bytes: memory for keys and values, the draft model's included. All of it is taken
            at once, and never more. 2e9 is as good as 2_000_000_000.
        page_size: tokens a page holds. What requests share begins at the first token and ends with
            a full page, so smaller pages share more; they cost a longer block table.
        max_batch_tokens: tokens that a step computes, guesses included. More serves prompts
            faster, and makes those that decode wait longer meanwhile.
        max_num_seqs: requests that run at the same time.
        enable_prefix_cache: share pages between requests whose tokens begin alike, and keep them
            for later ones while there is room.
        draft_model: a smaller model that guesses tokens, as `model`; it must have the same
            vocabulary. It changes how many steps an answer takes, and no token.
        num_drafts: how many guesses for a step.
        seed: of requests that have none; None draws one.
        listener: is told every event (`events.py`), for example a `Recorder`.

    Attributes:
        tokenizer: the model's.
        scheduler: who runs, who waits, who has which pages.
        runner: has `statistics`.
        vocab_size, step_seconds: see `EngineCore`.

    Raises:
        UserError: the model cannot be had, arguments that contradict each other, or memory that
            does not hold a page.
    """

    def __init__(
        self,
        model: Model,
        *,
        kv_cache_bytes: float = DEFAULT_KV_CACHE_BYTES,
        page_size: int = 32,
        max_batch_tokens: int = 256,
        max_num_seqs: int = 32,
        enable_prefix_cache: bool = True,
        draft_model: Model | None = None,
        num_drafts: int = 4,
        seed: int | None = 0,
        listener: Listener | None = None,
    ):
        if draft_model is not None:
            check_whole("num_drafts", num_drafts, 1, " with a draft model")
        check_whole("page_size", page_size, 1)
        seed = secrets.randbits(64) if seed is None else checked_seed(seed)
        target, tokenizer = _open(model, page_size)
        draft = None
        if draft_model is not None:
            draft, draft_tokenizer = _open(draft_model, page_size)
            check_same_vocabulary(draft_tokenizer, tokenizer)
        models = [target] if draft is None else [target, draft]
        num_pages = _num_pages(kv_cache_bytes, page_size, models)
        config = SchedulerConfig(
            num_pages=num_pages,
            page_size=page_size,
            max_batch_tokens=max_batch_tokens,
            max_num_seqs=max_num_seqs,
            max_seq_len=min(model.max_seq_len for model in models),
            num_drafts=0 if draft is None else num_drafts,
            enable_prefix_cache=enable_prefix_cache,
        )
        runner = Runner(PagedModel(target, num_pages))
        if draft is not None:
            runner.draft = DraftModel(PagedModel(draft, num_pages), target.vocab_size)
        super().__init__(tokenizer, Scheduler(config, listener), runner, seed)
        self._outbox: deque[StreamOutput] = deque()

    # ---------------------------------------------------------------- everything at once

    def generate(
        self,
        prompts: Prompts,
        params: Params = None,
        *,
        enable_thinking: bool = False,
        show_progress: bool = True,
    ) -> list[RequestOutput]:
        """Answers prompts.

        Args:
            prompts: one or several, each a text (encoded as it stands), token ids (a list or an
                array), or the messages of a chat (`{"role": …, "content": …}`, both texts).
            params: for all, or one a prompt; `SamplingParams()` if None.
            enable_thinking: what the chat template is told.
            show_progress: a progress bar on standard error, if that is a terminal.

        Returns:
            One output a prompt, in their order. A prompt that was refused has one with
            finish_reason "error" and the sentence in `error`; the others go on.

        Raises:
            UserError: what is no prompt, or not one `params` a prompt.
        """
        console = Console(stderr=True)
        with Progress(
            console=console, disable=not (show_progress and console.is_terminal)
        ) as progress:
            outputs: list[RequestOutput] = []
            asked = _asked(prompts, params)
            task = progress.add_task("generating", total=len(asked))
            for output in self._serve(asked, enable_thinking, outputs):
                progress.advance(task, output.request_output.finished)
        return outputs

    def stream(
        self, prompts: Prompts, params: Params = None, *, enable_thinking: bool = False
    ) -> Iterator[StreamOutput]:
        """As `generate`, but yields every token as it comes: arguments and errors are the same.

        Tokens of different prompts come as they are computed; `request_output` of the same prompt
        is the same object. Who stops iterating aborts what is left; until somebody begins, nothing
        is in the queue.
        """
        return self._serve(_asked(prompts, params), enable_thinking, [])

    def _add_or_refuse(
        self, prompt: Prompt, params: SamplingParams, thinking: bool, sink: deque[StreamOutput]
    ) -> RequestOutput:
        try:
            return self.add(prompt, params, None, thinking, sink)
        except UserError as error:
            output = CompletionOutput(0, finish_reason="error")
            now = time.perf_counter()
            metrics = RequestMetrics(now, finished_time=now)
            request_id = self.new_id()
            whole = RequestOutput(request_id, None, [], [output], metrics, error=str(error))
            sink.append(StreamOutput(request_id, 0, "", (), "error", whole))
            return whole

    def _serve(
        self,
        asked: Sequence[tuple[Prompt, SamplingParams]],
        thinking: bool,
        outputs: list[RequestOutput],
    ) -> Iterator[StreamOutput]:
        """Adds requests, theirs to `outputs`, and steps until they are finished.

        Aborts them if something is raised, or if nobody wants to know any more.
        """
        sink: deque[StreamOutput] = deque()
        try:
            for prompt, params in asked:
                outputs.append(self._add_or_refuse(prompt, params, thinking, sink))
            while sink or not all(output.finished for output in outputs):
                if not sink:
                    self.advance()
                while sink:
                    yield sink.popleft()
        finally:
            for output in outputs:
                if not output.finished:
                    self.abort(output.request_id)

    # ---------------------------------------------------------------- step by step

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        enable_thinking: bool = False,
    ) -> str:
        """Puts a request into the queue; `step` serves it.

        Args:
            prompt, enable_thinking: see `generate`.
            params: `SamplingParams()` if None.
            request_id: unique among those that are not finished; made up if None.

        Returns:
            Its id.

        Raises:
            UserError: an empty prompt, a token that the model does not have, more tokens than the
                model's context or the declared memory can hold, or an id that is taken.
        """
        _check_type(params or SamplingParams())
        whole = self.add(
            prompt, params or SamplingParams(), request_id, enable_thinking, self._outbox
        )
        return whole.request_id

    def step(self) -> list[StreamOutput]:
        """Computes one step and returns what it added to the requests of `add_request`.

        An exception within the model fails the requests of the step, with its message in `error`.
        The others go on.
        """
        if not self._outbox:
            self.advance()
        news = list(self._outbox)
        self._outbox.clear()
        return news

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to do or to tell."""
        return self.scheduler.has_requests or bool(self._outbox)

    def describe(self) -> dict[str, Any]:
        """How the engine is configured, of what JSON has: the head of a recording."""
        return asdict(self.scheduler.config)


def _asked(prompts: Prompts, params: Params) -> list[tuple[Prompt, SamplingParams]]:
    """Each prompt with its parameters."""
    listed = prompt_forms.as_list(prompts)
    if params is None or not isinstance(params, Sequence):
        params = [params or SamplingParams()] * len(listed)
    if len(params) != len(listed):
        raise UserError(f"{len(params)} params were given for {len(listed)} prompts.")
    for own in params:
        _check_type(own)
    return list(zip(listed, params, strict=True))


def _check_type(params: Any) -> None:
    """A dictionary of parameters is a likely mistake."""
    if not isinstance(params, SamplingParams):
        raise UserError(f"params is {params!r}; it must be a SamplingParams.")


def _open(model: Model, page_size: int) -> tuple[Any, Any]:
    """Week 3's model and its tokenizer."""
    name = "the model"
    if isinstance(model, str | os.PathLike):
        name = os.fspath(model)
        model = load_weights(name)
    if not _is_loaded(model):
        raise UserError(
            f"the model is {prompt_forms.shortened(model)}; give a name, a folder, or the pair "
            "(model, tokenizer) that `load` returns."
        )
    mlx_model, tokenizer = model
    target = dispatch_model(name, mlx_model, 3, page_size=page_size)
    return target, with_detokenizer(tokenizer)


def _is_loaded(model: Any) -> bool:
    """Whether it is a pair of a model and a tokenizer."""
    is_pair = isinstance(model, Sequence) and len(model) == 2
    return is_pair and hasattr(model[0], "args") and model[1] is not None


def _num_pages(kv_cache_bytes: float, page_size: int, models: Sequence[Any]) -> int:
    """How many pages the budget holds."""
    if isinstance(kv_cache_bytes, float) and kv_cache_bytes.is_integer():
        kv_cache_bytes = int(kv_cache_bytes)
    check_whole("kv_cache_bytes", kv_cache_bytes, 1)
    page_bytes = page_size * sum(model.kv_bytes_per_token for model in models)
    if kv_cache_bytes < page_bytes:
        raise UserError(
            f"kv_cache_bytes is {kv_cache_bytes}; a page of {page_size} tokens takes {page_bytes}."
        )
    return int(kv_cache_bytes // page_bytes)
