"""SamplingParams: sampling and stop parameters of a request."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ...errors import (
    UserError,
    array_to_list,
    check_int,
    is_token_id,
    short_repr,
    validate_bool,
    validate_number,
    validate_seed,
)
from .structured_outputs import StructuredOutputs, ToolCalls

MAX_N = 4096  # maximum completions per prompt
MAX_STOP_CONDITIONS = 100_000  # maximum stop strings, and maximum stop token ids
SAMPLING_EPS = 1e-5  # temperatures below this are greedy, as in vLLM


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of a request; names, defaults and semantics as in vLLM.

    Order of application: `logit_bias`, penalties, `min_tokens`, `structured_outputs`,
    `thinking_token_budget`, `temperature`, `min_p`, `top_k`, `top_p`.

    Args:
        max_tokens: upper bound on output tokens, EOS token included; None for as many as fit in the
            model's context and the KV memory.
        min_tokens: number of output tokens before EOS or a stop condition may end the output.
        clamp_max_tokens: whether to reduce, rather than reject, a `max_tokens` that does not fit.
        temperature: 0 is greedy; 1 samples the model's distribution.
        top_p: keeps the smallest set of top tokens with at least this probability mass; in (0, 1].
        top_k: number of top tokens to keep; 0 and −1 keep all.
        min_p: minimum probability relative to the top token; in [0, 1].
        seed: makes the output reproducible, independent of other requests. None or −1 derives one
            from the engine's seed and the arrival order.
        stop: string or strings that end the output; removed from the text. Ignored in reasoning.
        include_stop_str_in_output: whether to keep the stop string in the text.
        stop_token_ids: stop tokens besides the tokenizer's EOS tokens; not in the text.
        repetition_penalty: divides positive and multiplies negative logits of tokens in the prompt
            or output; 1 disables it.
        presence_penalty: subtracted from the logits of tokens in the output; in [−2, 2].
        frequency_penalty: like `presence_penalty`, multiplied by the token's occurrences.
        logit_bias: values to add to the logits, by token id; in [−100, 100].
        logprobs: number of top tokens per output position to return log-probabilities for, besides
            the sampled token. Computed from the model's unmodified logits.
        prompt_logprobs: like `logprobs`, for each prompt token except the first. Disables prefix
            cache hits for the request.
        n: number of completions, at most 4096. They share the prompt's pages.
        structured_outputs: constraint on the output after reasoning, enforced by masking. Output
            truncated at `max_tokens` is a prefix of a valid output.
        ignore_eos: whether to continue after the tokenizer's EOS tokens.
        thinking_token_budget: upper bound on reasoning tokens, after which `</think>` is forced.
    """

    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    logprobs: int | None = None
    n: int = 1
    ignore_eos: bool = False
    min_tokens: int = 0
    prompt_logprobs: int | None = None
    clamp_max_tokens: bool = False
    structured_outputs: StructuredOutputs | ToolCalls | None = field(default=None, hash=False)
    include_stop_str_in_output: bool = False
    thinking_token_budget: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            check_int("max_tokens", self.max_tokens, 1)
        self._check_number("temperature", 0, math.inf, "a number ≥ 0 (0 is greedy)")
        self._check_number("top_p", 0, 1, "in (0, 1] (1 keeps every token)", above=True)
        check_int("top_k", self.top_k, -1, " (0 and -1 keep every token)")
        self._check_number("min_p", 0, 1, "in [0, 1] (0 keeps every token)")
        if self.seed is not None:
            seed = None if self.seed == -1 else validate_seed(self.seed)
            object.__setattr__(self, "seed", seed)
        self._check_number(
            "repetition_penalty", 0, math.inf, "a number > 0 (1 disables it)", above=True
        )
        for name in ("presence_penalty", "frequency_penalty"):
            self._check_number(name, -2, 2, "in [-2, 2] (0 disables it)")
        for name in ("logprobs", "prompt_logprobs", "thinking_token_budget"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), 0)
        for name in ("ignore_eos", "clamp_max_tokens", "include_stop_str_in_output"):
            validate_bool(name, getattr(self, name))
        self._check_min_tokens()
        self._check_structured_outputs()
        check_int("n", self.n, 1)
        if self.n > MAX_N:
            raise UserError(
                f"n must be at most {MAX_N}, got {short_repr(self.n)}; repeat the prompt for more "
                "completions."
            )
        if self.n > 1 and self.is_greedy:
            raise UserError(
                f"n must be 1 at temperature {self.temperature}, got {self.n}: greedy completions "
                "are identical."
            )
        object.__setattr__(self, "stop", _normalize_stop(self.stop))
        object.__setattr__(self, "stop_token_ids", _normalize_stop_token_ids(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _normalize_logit_bias(self.logit_bias))

    def _check_number(
        self, name: str, low: float, high: float, allowed: str, above: bool = False
    ) -> None:
        number = validate_number(name, getattr(self, name), low, high, allowed, above)
        object.__setattr__(self, name, number)

    def _check_min_tokens(self) -> None:
        check_int("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UserError(
                f"min_tokens must be at most max_tokens, got min_tokens={self.min_tokens} and "
                f"max_tokens={self.max_tokens}."
            )

    def _check_structured_outputs(self) -> None:
        constraint = self.structured_outputs
        if constraint is None:
            return
        if not isinstance(constraint, StructuredOutputs | ToolCalls):
            raise UserError(
                f"structured_outputs must be a StructuredOutputs, got {short_repr(constraint)}."
            )
        for name in ("ignore_eos", "min_tokens"):
            if getattr(self, name):
                raise UserError(
                    f"{name}={getattr(self, name)!r} cannot be combined with structured_outputs, "
                    f"which determine where the output ends; remove {name}."
                )

    @property
    def is_greedy(self) -> bool:
        return self.temperature < SAMPLING_EPS

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return tuple(self.stop or ())


def _normalize_stop(stop: Any) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else _as_tuple("stop", stop)
    if stops is None or not all(isinstance(text, str) and text for text in stops):
        raise UserError(
            f"stop must be a non-empty string or a list of them, got {short_repr(stop)}."
        )
    return stops


def _normalize_stop_token_ids(ids: Any) -> tuple[int, ...]:
    token_ids = _as_tuple("stop_token_ids", ids)
    if token_ids is None or not all(map(is_token_id, token_ids)):
        raise UserError(f"stop_token_ids must be a list of token ids ≥ 0, got {short_repr(ids)}.")
    return tuple(map(int, token_ids))


def _as_tuple(name: str, values: Any) -> tuple[Any, ...] | None:
    """Converts an iterable to a tuple, None to (), strings and others to None."""
    if values is None:
        return ()
    values = array_to_list(values)
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Iterable):
        return None
    elements = tuple(islice(values, MAX_STOP_CONDITIONS + 1))
    if len(elements) > MAX_STOP_CONDITIONS:
        raise UserError(f"{name} must have at most {MAX_STOP_CONDITIONS:,} elements; remove some.")
    return elements


def _normalize_logit_bias(biases: Any) -> dict[int, float] | None:
    if biases is None:
        return None
    if not isinstance(biases, Mapping):
        raise UserError(
            f"logit_bias must map token ids to numbers in [-100, 100], got {short_repr(biases)}."
        )
    checked: dict[int, float] = {}
    for token, bias in biases.items():
        if not is_token_id(token):
            raise UserError(f"logit_bias must have token ids ≥ 0 as keys, got {short_repr(token)}.")
        name = f"logit_bias[{short_repr(token)}]"
        checked[int(token)] = validate_number(name, bias, -100, 100, "in [-100, 100]")
    return checked
