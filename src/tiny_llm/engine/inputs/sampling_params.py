"""How the tokens of an answer are chosen, and when it ends: what a caller may ask for."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ...errors import UserError, check_int, short_repr
from .structured_outputs import StructuredOutputs, ToolCalls
from .validation import array_to_list, is_token_id, validate_bool, validate_number, validate_seed

MAX_N = 4096  # answers of a prompt
MAX_STOP_CONDITIONS = 100_000  # texts, or tokens, that may end an answer
SAMPLING_EPS = 1e-5  # a temperature this small is greedy, as in vLLM


@dataclass(frozen=True)
class SamplingParams:
    """How one request is sampled. Names, defaults and meaning are vLLM's.

    The order: `logit_bias`, the three penalties, `structured_outputs`, `thinking_token_budget`,
    `temperature`, `min_p`, `top_k`, `top_p`. (The samplers of `make_sampler` filter before the
    temperature.)

    Args:
        max_tokens: ends the answer after this many tokens, the end token included; None allows as
            many as the model's context and the engine's memory hold.
        min_tokens: the answer has at least this many tokens before an end token, a token of
            `stop_token_ids` or a text of `stop` can end it.
        clamp_max_tokens: whether a `max_tokens` for which there is no room is cut to as many as
            fit; False refuses the request.
        temperature: 0 takes the likeliest token; 1 samples the model's distribution.
        top_p: keeps the smallest set of likeliest tokens whose mass reaches this; in (0, 1].
        top_k: keeps this many likeliest tokens; 0 and −1 keep all.
        min_p: keeps tokens at least this fraction as likely as the likeliest; in [0, 1].
        seed: makes the answer repeatable. A token then depends only on the prompt, these
            parameters and the token's place in the answer: not on other requests, and not on the
            engine's configuration. None derives a seed from the engine's.
        stop: a text, or several, that end the answer and are not part of it.
        include_stop_str_in_output: whether the text of `stop` that was found is part of it after
            all.
        stop_token_ids: tokens that end the answer, besides the tokenizer's own. Such a token is the
            last of `token_ids` and does not appear in the text.
        repetition_penalty: divides positive logits of tokens in the prompt or the answer, and
            multiplies negative ones; 1 changes nothing.
        presence_penalty: subtracted from the logit of each token in the answer; in [−2, 2].
        frequency_penalty: the same, times the number of occurrences; in [−2, 2].
        logit_bias: numbers in [−100, 100], by token id, that are added to the logits.
        logprobs: returns with each token of the answer the log-probabilities of this many
            likeliest tokens and its own. They are the model's, before any parameter here.
        prompt_logprobs: returns the same for each token of the prompt but the first. The whole
            prompt is then computed, whatever the prefix cache holds.
        n: the number of answers, at most 4096. They share the prompt's pages.
        structured_outputs: the form that the answer must have (`StructuredOutputs`, `ToolCalls`).
            Only tokens that keep to it are chosen; an answer that is cut at `max_tokens` is a
            beginning of one. What a model thinks before it answers is free.
        ignore_eos: whether to continue after the tokenizer's end tokens.
        thinking_token_budget: after so many tokens of thoughts, `</think>` is the next token. None
            sets no bound; a model that cannot think keeps to any.

    Raises:
        UserError: a parameter outside its range.
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
            object.__setattr__(self, "seed", validate_seed(self.seed))
        self._check_number(
            "repetition_penalty", 0, math.inf, "a number > 0 (1 is none)", above=True
        )
        for name in ("presence_penalty", "frequency_penalty"):
            self._check_number(name, -2, 2, "in [-2, 2] (0 is none)")
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
                f"n is {short_repr(self.n)}; it may be at most {MAX_N}: give the prompt several "
                "times for more answers."
            )
        if self.n > 1 and self.is_greedy:
            raise UserError(
                f"n is {self.n} at temperature {self.temperature}; greedy answers would all be "
                "the same, so n must be 1 or the temperature above 0."
            )
        object.__setattr__(self, "stop", _normalize_stop(self.stop))
        object.__setattr__(self, "stop_token_ids", _normalize_stop_token_ids(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _normalize_logit_bias(self.logit_bias))

    def _check_number(
        self, name: str, low: float, high: float, allowed: str, above: bool = False
    ) -> None:
        """Checks a field and keeps it as a float; arguments as `validate_number`."""
        number = validate_number(name, getattr(self, name), low, high, allowed, above)
        object.__setattr__(self, name, number)

    def _check_min_tokens(self) -> None:
        check_int("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UserError(
                f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}; min_tokens may "
                "be at most max_tokens."
            )

    def _check_structured_outputs(self) -> None:
        form = self.structured_outputs
        if form is None:
            return
        if not isinstance(form, StructuredOutputs | ToolCalls):
            raise UserError(
                f"structured_outputs is {short_repr(form)}; it must be a StructuredOutputs."
            )
        for name in ("ignore_eos", "min_tokens"):
            if getattr(self, name):
                raise UserError(
                    f"{name} is {getattr(self, name)!r} with structured_outputs, whose form says "
                    f"where the answer ends; leave {name} out."
                )

    @property
    def is_greedy(self) -> bool:
        """Whether every token is the likeliest one."""
        return self.temperature < SAMPLING_EPS

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on earlier tokens."""
        return self.repetition_penalty != 1 or bool(self.presence_penalty or self.frequency_penalty)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        return tuple(self.stop or ())


def _normalize_stop(stop: Any) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else _as_tuple("stop", stop)
    if stops is None or not all(isinstance(one, str) and one for one in stops):
        raise UserError(
            f"stop is {short_repr(stop)}; it must be a text or several, none of them empty."
        )
    return stops


def _normalize_stop_token_ids(ids: Any) -> tuple[int, ...]:
    listed = _as_tuple("stop_token_ids", ids)
    if listed is None or not all(map(is_token_id, listed)):
        raise UserError(
            f"stop_token_ids is {short_repr(ids)}; it must hold token ids, numbers ≥ 0."
        )
    return tuple(map(int, listed))


def _as_tuple(name: str, values: Any) -> tuple[Any, ...] | None:
    """The elements of a list, a tuple, an array or another iterable, for an optional argument.

    Returns:
        The elements; () if the argument is None; None if it is a single value such as 5 or "12".

    Raises:
        UserError: there are more than `MAX_STOP_CONDITIONS`.
    """
    if values is None:
        return ()
    values = array_to_list(values)
    is_one = isinstance(values, str | bytes | bytearray) or not isinstance(values, Iterable)
    if is_one:
        return None
    several = tuple(islice(values, MAX_STOP_CONDITIONS + 1))
    if len(several) > MAX_STOP_CONDITIONS:
        raise UserError(
            f"{name} has too many elements; it may have at most {MAX_STOP_CONDITIONS:,}."
        )
    return several


def _normalize_logit_bias(biases: Any) -> dict[int, float] | None:
    if biases is None:
        return None
    if not isinstance(biases, Mapping):
        raise UserError(
            f"logit_bias is {short_repr(biases)}; it must map token ids to numbers in [-100, 100]."
        )
    checked: dict[int, float] = {}
    for token, bias in biases.items():
        if not is_token_id(token):
            raise UserError(
                f"logit_bias has the token {short_repr(token)}; ids are whole numbers ≥ 0."
            )
        name = f"logit_bias[{short_repr(token)}]"
        checked[int(token)] = validate_number(name, bias, -100, 100, "in [-100, 100]")
    return checked
