"""Admission: checks of a request before the engine gets it."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from ...engine.inputs.sampling_params import SamplingParams, ToolCalls
from ...errors import UserError, check_token_ids
from ..http.errors import ApiError, bad_request, context_length_error, user_errors_as_400
from .messages import EngineReady

log = logging.getLogger("tiny_llm.server")

# Log-probabilities of prompt tokens per request; this many take 0.15 s to convert and encode.
MAX_PROMPT_LOGPROBS = 2**16
RETRY_AFTER = {"Retry-After": "1"}


def queue_full_error(message: str) -> ApiError:
    return ApiError(429, message, code="rate_limit_exceeded", headers=RETRY_AFTER)


def check_prompt(engine: EngineReady, token_ids: Sequence[int]) -> None:
    """Raises an `ApiError` (400) if a prompt is empty or too long, or has unknown tokens."""
    if not token_ids:
        raise bad_request("The prompt is empty; it must contain at least one token.")
    if len(token_ids) >= engine.max_seq_len:
        raise context_length_error(len(token_ids), engine.max_seq_len)
    if max(token_ids) >= engine.vocab_size:
        with user_errors_as_400():
            check_token_ids("the prompt", token_ids, engine.vocab_size)


def check_request(
    engine: EngineReady, prompts: Sequence[Sequence[int]], params: SamplingParams
) -> None:
    """Raises an `ApiError` (400) if prompts, `logit_bias` or `prompt_logprobs` are not valid."""
    for prompt in prompts:
        check_prompt(engine, prompt)
    with user_errors_as_400():
        check_token_ids("logit_bias", params.logit_bias or (), engine.vocab_size)
    if params.prompt_logprobs is not None:
        num_tokens, per_token = sum(map(len, prompts)) * params.n, params.prompt_logprobs + 1
        if num_tokens * per_token > MAX_PROMPT_LOGPROBS:
            raise bad_request(
                f"The prompts have {num_tokens} tokens with {per_token} log-probabilities each; a "
                f"request may have {MAX_PROMPT_LOGPROBS} log-probabilities of prompt tokens. Send "
                "fewer prompts, or request fewer alternatives.",
                "prompt_logprobs",
            )


def check_capacity(num_completions: int, num_unfinished: int, capacity: int) -> None:
    """Checks a request's completions against the engine's slots and queue.

    Args:
        num_unfinished: number of completions in the engine.
        capacity: number of completions that may run or wait.

    Raises:
        ApiError: 400 if the request alone exceeds the capacity, 429 if the queue is full.
    """
    if num_completions > capacity:
        raise bad_request(
            f"The request needs {num_completions} completions; this server accepts at most "
            f"{capacity} at a time.",
            "n",
        )
    if num_unfinished + num_completions > capacity:
        raise queue_full_error(
            f"The queue is full: {num_unfinished} of {capacity} completions are running or "
            "waiting; retry later."
        )


def compile_grammar(
    engine: EngineReady,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    thinking_enabled: bool,
) -> SamplingParams:
    """Compiles and caches a request's grammar, in a worker thread; returns its parameters.

    With `tool_choice` "auto" and no response constraint, a grammar that cannot be compiled is
    dropped, which leaves tool calls unconstrained. Other constraints raise an `ApiError` (400).
    """
    constraint = params.structured_outputs
    assert engine.compile_grammar is not None
    try:
        for prompt in prompts:
            engine.compile_grammar(prompt, params, enable_thinking=thinking_enabled)
    except UserError as error:
        is_optional = (
            isinstance(constraint, ToolCalls)
            and constraint.choice == "auto"
            and constraint.response_constraint is None
        )
        if not is_optional:
            raise bad_request(str(error)) from error
        log.warning("tool calls are not constrained to their schemas: %s", error)
        return replace(params, structured_outputs=None)
    except Exception as error:
        log.exception("grammar compilation failed")
        reason = "The output constraint could not be compiled; see the server's log."
        raise bad_request(reason) from error
    return params
