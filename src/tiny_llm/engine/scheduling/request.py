"""EngineRequest: tokens, computed counts and pages of one completion.

An `EngineRequest` produces one completion; a prompt with `n` completions becomes `n` requests. A
request's state is a set of half-open intervals over its tokens:

    token_ids   [0, num_prompt_tokens)             the prompt
                [num_prompt_tokens, num_tokens)    the output so far

    keys and    [0, num_computed)                  are in the pages
    values      [num_computed, num_tokens)         to be computed: prompt chunks, or the one token
                                                   sampled last

    page_ids    page i holds tokens [i · page_size, (i + 1) · page_size) of this request;
                [0, num_shared)                    full, final, and in the prefix cache
                [num_shared, len(page_ids))        owned by this request alone

With several KV cache groups or a sliding window, block i has several pages or none, of which each
group has [num_freed, num_allocated) (`kv_groups`).
"""

from array import array
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Literal

from ...errors import UserError, short_repr
from ..inputs.sampling_params import SamplingParams
from .config import SchedulerConfig

FinishReason = Literal["stop", "length", "timeout", "abort", "error"]


class RequestState(StrEnum):
    """Lifecycle of a request.

    waiting → running; running ⇄ preempted, when out of pages; any state → finished.
    """

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class EngineRequest:
    """One completion in progress; the scheduler owns its mutable state.

    Args:
        request_id: unique among unfinished requests.
        prompt_token_ids: at least one token.
        max_tokens: output limit; the scheduler replaces None with the largest value that fits.
        num_to_score: number of leading prompt tokens whose logits give prompt logprobs.
        end_token_ids: tokens that end the output; the sampler masks them until `min_tokens`.
        grammar, thinking_budget, token_counts: `StructuredOutputGrammar`, `ThinkingBudget` and
            `TokenCounts` (for penalties) of the sampler, or None.
        adapter: LoRA adapter index, −1 for none; requests share pages only within an adapter.

    Attributes:
        num_cached_tokens: prompt tokens found in the prefix cache at first admission.
        num_draft_uncomputed: trailing computed tokens that the draft model has yet to compute; its
            keys and values use the same page numbers.
        num_loading: tokens, after the computed ones, whose pages are being read from disk.
        num_uncached: uncached tokens when queued; used by `FairScheduler`.
        num_overtaken: prompt tokens of younger requests computed first; used by `FairScheduler`.
        state_slots: `RequestSlots` while running, if the model has recurrent state.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        max_tokens: int | None = None,
        seed: int = 0,
        *,
        num_to_score: int = 0,
        end_token_ids: Sequence[int] = (),
        grammar: Any = None,
        thinking_budget: Any = None,
        token_counts: Any = None,
        adapter: int = -1,
    ):
        self.request_id = request_id
        self.params = params
        self.max_tokens = max_tokens
        self.seed = seed
        self.num_to_score = num_to_score
        self.end_token_ids = end_token_ids
        self.grammar = grammar
        self.thinking_budget = thinking_budget
        self.token_counts = token_counts
        self.adapter = adapter
        self.token_ids: list[int] = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.state = RequestState.WAITING
        self.finish_reason: FinishReason | None = None
        self.arrival_index = -1
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_computed = 0
        self.num_loading = 0
        self.num_draft_uncomputed = 0
        self.page_ids = array("i")  # int32, like block tables
        self.num_shared = 0
        self.num_freed: list[int] = []  # blocks by KV cache group
        self.num_allocated: list[int] = []
        self.last_node: Any = None  # prefix cache node of the last shared page
        self.draft_token_ids: Sequence[int] = ()
        self.num_scored = 0
        self.num_uncached = self.num_overtaken = 0
        self.state_slots: Any = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        """Number of tokens to compute; 1 while decoding, 0 while loading from disk."""
        return 0 if self.num_loading else len(self.token_ids) - self.num_computed

    @property
    def is_done(self) -> bool:
        return self.finish_reason is not None

    def end(self, reason: FinishReason) -> None:
        assert self.finish_reason is None, f"{self.request_id} has already ended"
        self.finish_reason = reason
        self.state = RequestState.FINISHED

    def __repr__(self) -> str:
        return (
            f"EngineRequest({self.request_id!r}, {self.state.value}, {self.num_computed} of "
            f"{self.num_tokens} tokens computed, {len(self.page_ids)} pages)"
        )


def fitting_max_tokens(config: SchedulerConfig, request: EngineRequest) -> int:
    """Returns `max_tokens`, or the largest value that fits if it is None.

    The bounds are `max_seq_len` and `max_tokens_in_pages`. The last output token needs no slot: its
    keys and values are never computed.

    Raises:
        UserError: the prompt is empty or too long, or `max_tokens` does not fit.
    """
    prompt = request.num_prompt_tokens
    if prompt == 0:
        raise UserError("the prompt is empty; give at least one token.")
    in_pages = config.max_tokens_in_pages + 1 - prompt
    in_context = config.max_seq_len - prompt
    for largest, limit in (
        (in_context, f"the model's context length is {config.max_seq_len} tokens"),
        (in_pages, f"the KV memory holds {config.max_tokens_in_pages} tokens"),
    ):
        if largest < 1:
            raise UserError(f"the prompt has {prompt} tokens, but {limit}, including the output.")
        if request.max_tokens is not None and request.max_tokens > largest:
            raise UserError(
                f"the prompt has {prompt} tokens and max_tokens is "
                f"{short_repr(request.max_tokens)}, but {limit}; max_tokens must be at most "
                f"{largest} for this prompt."
            )
    return request.max_tokens or min(in_pages, in_context)
