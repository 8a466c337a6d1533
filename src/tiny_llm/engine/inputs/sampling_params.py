"""SamplingParams: sampling, stopping and constraints of a request.

Constraints on the output (`StructuredOutputs`, `ToolCalls`) are validated without a grammar
library, compiled in `compiler.py` and enforced in `bitmask.py`.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

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
from .chat_template import normalize_tools
from .limits import JsonLimits

ToolChoice = Literal["auto", "required"]

# llguidance's limit on nesting.
NESTED_TOO_DEEPLY = "the JSON schema must have at most 124 levels of nesting"


@dataclass(frozen=True)
class StructuredOutputs:
    """A constraint on the output after reasoning; field names follow vLLM.

    Args:
        json: JSON schema, as an object or as a string.
        regex: regular expression that must match the whole output.
        choice: allowed outputs.
        grammar: Lark grammar, or llama.cpp's GBNF.
        json_object: True for any JSON object.
        strict: whether to reject, not relax, a JSON schema with keywords that no grammar enforces.
    """

    json: Mapping[str, Any] | bool | str | None = field(default=None, hash=False)
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        names = ("json", "regex", "choice", "grammar", "json_object")
        given = [name for name in names if getattr(self, name) not in (None, ())]
        if self.json_object is False or len(given) != 1:
            raise UserError(
                "structured_outputs must have exactly one of json, regex, choice, grammar and "
                f"json_object=True, got {' and '.join(given) or 'none'}."
            )
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise UserError(
                    f"structured_outputs.{name} must be a string, got {short_repr(value)}."
                )
        if self.json_object not in (None, True):
            raise UserError(
                "structured_outputs.json_object must be True or None, got "
                f"{short_repr(self.json_object)}."
            )
        if self.choice is not None:
            object.__setattr__(self, "choice", _normalize_choice(self.choice))
        if self.json is not None:
            object.__setattr__(self, "json", _normalize_schema(self.json))


@dataclass(frozen=True)
class ToolCalls:
    """Tool calls in the model's format, optionally with text.

    `engine/tool_calls/registry.py` lists the formats. For example, Qwen3's is:

        <tool_call>
        {"name": "add", "arguments": {"a": 17, "b": 25}}
        </tool_call>

    Args:
        tools: tools in OpenAI's format; their schemas constrain the arguments. Keywords that a
            grammar cannot enforce are ignored, unless `choice` is "required" and the function has
            `"strict": true`.
        choice: "auto" for text, calls or both; "required" for calls only.
        name: the tool to call, with "required"; None for any tool.
        parallel: whether several calls are allowed, if the format supports them.
        response_constraint: with "auto", constraint on an output without calls; calls then have
            no text around them. None leaves text unconstrained.
    """

    tools: Sequence[Mapping[str, Any]] = field(hash=False)
    choice: ToolChoice = "auto"
    name: str | None = None
    parallel: bool = True
    response_constraint: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        tools = normalize_tools(self.tools)
        if not tools:
            raise UserError("tools must not be empty.")
        if self.choice not in ("auto", "required"):
            raise UserError(f"the tool choice must be 'auto' or 'required', got {self.choice!r}.")
        known = [tool["function"]["name"] for tool in tools]
        if self.name is not None and self.name not in known:
            raise UserError(
                f"the required tool must be one of {', '.join(known)}, got '{self.name}'."
            )
        if self.name is not None and self.choice != "required":
            raise UserError("naming a tool requires the tool choice 'required', got 'auto'.")
        if self.response_constraint is not None and self.choice != "auto":
            raise UserError("response_constraint requires the tool choice 'auto', got 'required'.")
        object.__setattr__(self, "tools", tuple(tools))


def _normalize_choice(choice: Any) -> tuple[str, ...]:
    is_list = isinstance(choice, Sequence) and not isinstance(choice, str | bytes)
    if not is_list or not all(isinstance(text, str) and text for text in choice):
        raise UserError(
            "structured_outputs.choice must be a list of non-empty strings, got "
            f"{short_repr(choice)}."
        )
    return tuple(choice)


def _normalize_schema(schema: Any) -> str:
    if isinstance(schema, str):
        JsonLimits("the JSON schema").check(schema)
        try:
            schema = json.loads(schema)
        except RecursionError as error:
            raise UserError(f"{NESTED_TOO_DEEPLY}.") from error
        except ValueError as error:
            raise UserError(f"the JSON schema {short_repr(schema)} is not JSON.") from error
    if not isinstance(schema, Mapping | bool):
        raise UserError(f"the JSON schema must be an object, got {short_repr(schema)}.")
    return schema_to_json(schema)


def schema_to_json(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except RecursionError as error:
        raise UserError(f"{NESTED_TOO_DEEPLY}.") from error
    except (TypeError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise UserError(
            f"the schema {short_repr(value)} is not JSON-serializable: {reason}."
        ) from error


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
