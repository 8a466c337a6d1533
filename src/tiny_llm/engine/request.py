"""One answer on its way: which tokens it has, which of them are computed, who owns the pages.

All of it as half-open intervals over the tokens of the prompt and the answer:

    token_ids   [0, num_prompt_tokens)             the prompt
                [num_prompt_tokens, num_tokens)    the answer so far

    keys and    [0, num_computed)                  in the pages
    values      [num_computed, num_tokens)         to be computed: chunks of a prompt, or the one
                                                   token that was sampled last

    page_ids    page i holds tokens [i · page_size, (i + 1) · page_size) of this request;
                [0, num_shared)                    full, never written again, in the prefix cache
                [num_shared, len(page_ids))        this request's alone
"""

from array import array
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal

from .sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


class RequestState(StrEnum):
    """Where a request is.

    waiting → running → finished, aborted or failed; running ⇄ preempted when pages run out.
    """

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


END_STATES = {
    "stop": RequestState.FINISHED,
    "length": RequestState.FINISHED,
    "abort": RequestState.ABORTED,
    "error": RequestState.FAILED,
}


class Request:
    """What the scheduler knows of one answer. It changes nothing but through the scheduler.

    Args:
        request_id: unique among those that are not done.
        prompt_token_ids: at least one.
        params: how to sample.
        max_tokens: of the answer; None lets the scheduler say how many fit.
        index: which of the prompt's `params.n` answers.

    Attributes:
        arrival: its place in the order of arrival, given by the scheduler.
        num_cached_tokens: how many tokens of the prompt it found computed when it was first
            admitted.
        num_preemptions: how often it gave up its pages.
        num_unguessed: how many of the computed tokens, at the end, a draft model has not seen. Its
            keys and values are in the same pages, beside the target's.
        finish_reason: None until it ends.
        error: why it failed, a sentence.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        max_tokens: int | None = None,
        index: int = 0,
    ):
        self.request_id = request_id
        self.params = params
        self.index = index
        self.max_tokens = max_tokens
        self.token_ids: list[int] = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.state = RequestState.WAITING
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self.arrival = -1
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_computed = 0
        self.num_unguessed = 0
        self.page_ids = array("i")  # int32, so that a block table takes it as it is
        self.num_shared = 0
        self.node: Any = None  # of the prefix cache, the last of the shared pages

    @property
    def num_tokens(self) -> int:
        """Of prompt and answer."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Of the answer so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """The answer so far."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose keys and values are in no page: 1 while it decodes."""
        return len(self.token_ids) - self.num_computed

    @property
    def is_done(self) -> bool:
        """Whether it has ended, in whichever way."""
        return self.finish_reason is not None

    def end(self, reason: FinishReason, error: str | None = None) -> None:
        """Ends it, once."""
        assert self.finish_reason is None, f"{self.request_id} ended twice"
        self.finish_reason = reason
        self.error = error
        self.state = END_STATES[reason]

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.state.value}, {self.num_computed} of "
            f"{self.num_tokens} tokens computed, {len(self.page_ids)} pages)"
        )
