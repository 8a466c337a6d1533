"""A request inside the engine: its tokens, which of them are computed, and its pages.

An `EngineRequest` leads to one answer; a prompt with `n` answers is `n` of them. Its state is told
by half-open intervals over the tokens of the prompt and the answer:

    token_ids   [0, num_prompt_tokens)             the prompt
                [num_prompt_tokens, num_tokens)    the answer so far

    keys and    [0, num_computed)                  are in the pages
    values      [num_computed, num_tokens)         are still to be computed: chunks of a prompt, or
                                                   the one token that was sampled last

    page_ids    page i holds tokens [i · page_size, (i + 1) · page_size) of this request;
                [0, num_shared)                    are full, final, and in the prefix cache
                [num_shared, len(page_ids))        belong to this request alone
"""

from array import array
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal

from ..inputs.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "timeout", "abort", "error"]


class RequestState(StrEnum):
    """The phases of a request.

    waiting → running → finished, aborted or failed; running ⇄ preempted when pages run out.
    """

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


FINAL_STATES = {
    "stop": RequestState.FINISHED,
    "length": RequestState.FINISHED,
    "timeout": RequestState.ABORTED,
    "abort": RequestState.ABORTED,
    "error": RequestState.FAILED,
}


class EngineRequest:
    """What the engine knows of one answer on its way. Only the scheduler changes it.

    Args:
        request_id: unique among those that are not done.
        prompt_token_ids: at least one.
        params: how to sample.
        max_tokens: of the answer; the scheduler replaces None by as many as fit.
        seed: of this answer's random numbers.

    Attributes:
        arrival_index: its place in the order of arrival, given by the scheduler.
        num_cached_tokens: tokens of the prompt that were found in the prefix cache when it was
            first admitted.
        num_preemptions: how often it gave up its pages.
        num_draft_uncomputed: how many of the computed tokens, at the end, a draft model has not
            computed. Its keys and values are in the same pages, beside the target's.
        finish_reason: None until it ends.
        grammar: what the answer is kept to (`grammars.StructuredOutputGrammar`), or None. The
            scheduler does not use it.
        draft_token_ids: draft tokens proposed without a model (`grammar_proposer.py`,
            `ngram_proposer.py`).
        end_token_ids: tokens that end the answer; none of them is chosen before `min_tokens`.
        num_to_score: how many tokens of the prompt, from the first on, are to tell the
            log-probabilities of the token that follows them.
        num_scored: how many of them have.
        token_counts: what penalties need (`choose_tokens.TokenCounts`), or None. The scheduler does
            not use it.
        thinking_budget: what bounds its thoughts (`thinking_budget.ThinkingBudget`), or None.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        max_tokens: int | None = None,
        seed: int = 0,
    ):
        self.request_id = request_id
        self.params = params
        self.max_tokens = max_tokens
        self.seed = seed
        self.token_ids: list[int] = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.state = RequestState.WAITING
        self.finish_reason: FinishReason | None = None
        self.arrival_index = -1
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_computed = 0
        self.num_draft_uncomputed = 0
        self.page_ids = array("i")  # int32, which a block table takes without conversion
        self.num_shared = 0
        self.last_node: Any = None  # the prefix cache's node of the last shared page
        self.token_counts: Any = None
        self.thinking_budget: Any = None
        self.grammar: Any = None
        self.draft_token_ids: Sequence[int] = ()
        self.end_token_ids: Sequence[int] = ()
        self.num_scored = 0
        self.num_to_score = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt and the answer."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """The tokens of the answer so far."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose keys and values are not in a page yet: 1 while it decodes."""
        return len(self.token_ids) - self.num_computed

    @property
    def is_done(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.finish_reason is not None

    def end(self, reason: FinishReason) -> None:
        """Ends it. A request ends once."""
        assert self.finish_reason is None, f"{self.request_id} ended twice"
        self.finish_reason = reason
        self.state = FINAL_STATES[reason]

    def __repr__(self) -> str:
        return (
            f"EngineRequest({self.request_id!r}, {self.state.value}, {self.num_computed} of "
            f"{self.num_tokens} tokens computed, {len(self.page_ids)} pages)"
        )
