"""Shared fields: sampling parameters, constraints, defaults, encoded reasoning."""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ...engine.inputs.sampling_params import SamplingParams, StructuredOutputs, ToolCalls
from ...engine.structured_output.compiler import MAX_GRAMMAR_CHARS
from ...errors import UserError
from ...models.checkpoint.safe_io import ModelError, read_optional_json
from ...models.checkpoint.tokenizer_config import GENERATION_CONFIG
from ..http.errors import bad_request, user_errors_as_400
from .base_schema import BoundedDict, BoundedList, JsonObject, RequestBody, RequestModel, ShortList

GrammarText = Annotated[str, Field(max_length=MAX_GRAMMAR_CHARS)]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

# Thinking budgets in tokens by effort level, because the models can only turn thinking on or off.
# Higher levels are unlimited, and "none" turns thinking off.
THINKING_BUDGETS = {"minimal": 128, "low": 512, "medium": 2048}
UNLIMITED = -1  # thinking budget without a limit, as in vLLM
NO_SEED = -1  # seed of an unseeded request, as in vLLM


def thinking_budget(
    tokens: int | None, effort: ReasoningEffort | None, max_tokens: int | None
) -> int | None:
    """Returns the maximum number of reasoning tokens; None for no limit.

    Args:
        tokens: the request's explicit thinking budget, which takes precedence; None if not given.
        max_tokens: maximum tokens in the completion; half of them are reserved for the content.
    """
    if tokens is not None:
        return None if tokens == UNLIMITED else tokens
    budget = THINKING_BUDGETS.get(effort or "")
    if budget is None or max_tokens is None:
        return budget
    return min(budget, max_tokens // 2)


# Keys of generation_config.json that set defaults, as in vLLM.
GENERATION_CONFIG_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
INT64_MAX = 2**63 - 1
# Fields passed to `SamplingParams` unchanged.
SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "ignore_eos"),
)

OutputConstraint = StructuredOutputs | ToolCalls

PositiveInt = Annotated[int, Field(ge=1, le=INT64_MAX)]


class StructuredOutputsFields(RequestModel):
    """Constraint on the output, as in vLLM. Exactly one field must be set."""

    json_: Annotated[JsonObject | bool | str | None, Field(alias="json")] = None
    regex: GrammarText | None = None
    choice: BoundedList[str] | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None

    def constraint(self) -> StructuredOutputs:
        fields = self.model_dump(by_alias=True, exclude_none=True)
        return make_constraint("structured_outputs", **fields)


class JsonSchemaFormat(RequestModel):
    name: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """Output format. `schema`, with type `json_object`, is a llama.cpp extension."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None

    def constraint(self) -> StructuredOutputs | None:
        if self.type == "text":
            return None
        schema, is_strict = self.schema_, False
        if self.type == "json_schema":
            given = self.json_schema or JsonSchemaFormat()
            schema, is_strict = given.schema_, bool(given.strict)
            if schema is None:
                raise bad_request(
                    "response_format.json_schema.schema is required.", "response_format"
                )
        if schema is None:
            return make_constraint("response_format", json_object=True)
        return make_constraint("response_format", json=schema, strict=is_strict)


class CommonFields(RequestBody):
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=INT64_MAX)] | None = None
    stop: str | ShortList[str] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    ignore_eos: bool | None = None
    thinking_token_budget: Annotated[int, Field(ge=UNLIMITED, le=INT64_MAX)] | None = None
    stream: bool | None = None

    @property
    def effort(self) -> ReasoningEffort | None:
        return None

    def shared_params(self, max_tokens: int | None) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in SAMPLING_FIELDS},
            "max_tokens": max_tokens,
            "thinking_token_budget": thinking_budget(
                self.thinking_token_budget, self.effort, max_tokens
            ),
        }


class StreamOptions(RequestModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # requires `include_usage`, as in vLLM


class SamplingFields(CommonFields):
    stop_token_ids: BoundedList[Annotated[int, Field(ge=0, le=INT64_MAX)]] | None = None
    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    logit_bias: BoundedDict[Annotated[float, Field(ge=-100, le=100)]] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    structured_outputs: StructuredOutputsFields | None = None
    response_format: ResponseFormat | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    stream_options: StreamOptions | None = None

    def response_constraint(self) -> StructuredOutputs | None:
        return None if self.response_format is None else self.response_format.constraint()

    def sampling_params(
        self,
        defaults: Mapping[str, Any],
        max_tokens: int | None,
        logprobs: int | None,
        constraint: OutputConstraint | None = None,
        prompt_logprobs: int | None = None,
    ) -> SamplingParams:
        if self.structured_outputs is not None:
            if constraint is not None:
                raise bad_request(
                    "structured_outputs conflicts with another output constraint; set only one.",
                    "structured_outputs",
                )
            constraint = self.structured_outputs.constraint()
        return make_sampling_params(
            defaults,
            **self.shared_params(max_tokens),
            structured_outputs=constraint,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            min_tokens=self.min_tokens,
            stop_token_ids=self.stop_token_ids,
            n=self.n,
            logit_bias=_parse_logit_bias(self.logit_bias),
            include_stop_str_in_output=self.include_stop_str_in_output,
        )

    def check_fields(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options requires stream: true.", "stream_options")
        if self.stream and self.prompt_logprobs is not None:
            raise bad_request(
                "prompt_logprobs cannot be combined with stream: true; remove one of them.",
                "prompt_logprobs",
            )


@dataclass(frozen=True)
class CommonToolChoice:
    """A request's tool choice, in the terms of all protocols."""

    mode: str = "auto"  # "auto", "none" or "required"
    name: str | None = None  # with "required": the only function to call; None for any
    allowed: Set[str] | None = None  # names of the functions the model may call; None for all

    def usable(self, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the tools the model may call, in the format of chat completions."""
        if self.mode == "none":
            return []
        return [
            tool
            for tool in tools
            if self.allowed is None or tool["function"]["name"] in self.allowed
        ]

    def constraint(
        self,
        tools: list[dict[str, Any]],
        parallel: bool | None,
        response_constraint: StructuredOutputs | None,
    ) -> OutputConstraint | None:
        """Constraint for calls of `tools`; `response_constraint` applies to output without calls.

        With "auto", calls are optional but match their schemas.
        """
        if self.mode == "required":
            parallel = self.name is None and parallel is not False
            with user_errors_as_400("tool_choice"):
                return ToolCalls(tools, choice="required", name=self.name, parallel=parallel)
        if not tools:
            return response_constraint
        parallel = parallel is not False
        with user_errors_as_400("tools"):
            return ToolCalls(
                tools, choice="auto", parallel=parallel, response_constraint=response_constraint
            )


def make_sampling_params(defaults: Mapping[str, Any], **fields: Any) -> SamplingParams:
    """Creates sampling parameters; the request's fields override the defaults."""
    given = {name: value for name, value in fields.items() if value is not None}
    if given.get("seed") == NO_SEED:
        del given["seed"]
    if "seed" in given:
        given["seed"] %= 2**64  # OpenAI allows negative seeds
    chosen: dict[str, Any] = {"max_tokens": None, "clamp_max_tokens": True, **defaults, **given}
    if chosen.get("n", 1) > 1 and "temperature" not in given:
        # With the default temperature of 0, the `n` completions would be identical.
        chosen["temperature"] = chosen.get("temperature") or 1.0
    with user_errors_as_400():
        return SamplingParams(**chosen)


def make_constraint(param: str, **fields: Any) -> StructuredOutputs:
    """Creates a constraint; raises an `ApiError` (400) for `param` if it is not valid."""
    with user_errors_as_400(param):
        return StructuredOutputs(**fields)


def default_sampling_params(folder: Path, source: str) -> dict[str, Any]:
    """Reads the model's default sampling parameters.

    Args:
        source: "auto" reads `generation_config.json` (`do_sample: false` means greedy); "vllm"
            keeps the engine's defaults.

    Raises:
        ModelError: the file is unreadable, or a default is invalid.
    """
    if source == "vllm":
        return {}
    config = read_optional_json(folder, GENERATION_CONFIG)
    defaults = {key: config[key] for key in GENERATION_CONFIG_KEYS if config.get(key) is not None}
    try:
        SamplingParams(**defaults)
    except UserError as error:
        raise ModelError(f"{folder / GENERATION_CONFIG} cannot be used: {error}") from error
    return {**defaults, "temperature": 0.0} if config.get("do_sample") is False else defaults


def _parse_logit_bias(given: Mapping[str, float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    for token in given:
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise bad_request(
                f"logit_bias keys must be token ids, got {token[:40]!r}.", "logit_bias"
            )
    return {int(token): bias for token, bias in given.items()}


def encode_reasoning(reasoning: str) -> str:
    """Encodes reasoning for clients to send back, in Base64 and without encryption."""
    return b64encode(reasoning.encode("utf-8", "replace")).decode()


def decode_reasoning(content: Any) -> str:
    """Inverse of `encode_reasoning`; returns "" for values from other servers."""
    try:
        return b64decode(content, validate=True).decode()
    except (TypeError, ValueError):
        return ""
