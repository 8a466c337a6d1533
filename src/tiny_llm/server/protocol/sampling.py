"""Sampling: the fields that OpenAI's protocols share, and the defaults of a model."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from ...engine.inputs.sampling_params import SamplingParams
from ...engine.inputs.structured_outputs import StructuredOutputs, ToolCalls
from ...errors import UserError
from ..http.errors import bad_request
from .reasoning_effort import UNLIMITED, ReasoningEffort, thinking_budget

# Keys of generation_config.json that are defaults here, as in vLLM.
GENERATION_CONFIG_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
INT64_MAX = 2**63 - 1
# Fields that have the name of the engine's parameter, and its meaning.
SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "ignore_eos",
)

T = TypeVar("T")
OutputConstraint = StructuredOutputs | ToolCalls

PositiveInt = Annotated[int, Field(ge=1, le=INT64_MAX)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class StrictModel(BaseModel):
    """A request's body: a field that is not known is refused, and so is a value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StructuredOutputsFields(StrictModel):
    """vLLM's `structured_outputs`: exactly one of these."""

    json_: Annotated[dict[str, Any] | bool | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def constraint(self) -> StructuredOutputs:
        """The form, as the engine takes it.

        Raises:
            ApiError: none of the fields is given, or several.
        """
        fields = self.model_dump(by_alias=True, exclude_none=True)
        return make_constraint(StructuredOutputs, "structured_outputs", **fields)


class ResponseFormat(StrictModel):
    """The form of an answer; `schema` is llama.cpp's, for a JSON object."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None

    def constraint(self) -> StructuredOutputs | None:
        """The form, as the engine takes it; None for a text.

        Raises:
            ApiError: a schema is missing.
        """
        if self.type == "text":
            return None
        schema = self.schema_
        if self.type == "json_schema":
            schema = (self.json_schema or {}).get("schema")
            if schema is None:
                raise bad_request(
                    "response_format.json_schema.schema is missing.", "response_format"
                )
        fields = {"json_object": True} if schema is None else {"json": schema}
        return make_constraint(StructuredOutputs, "response_format", **fields)


class CommonFields(StrictModel):
    """What chats, completions and responses all take."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=INT64_MAX)] | None = None
    stop: str | list[str] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    ignore_eos: bool | None = None
    thinking_token_budget: Annotated[int, Field(ge=UNLIMITED, le=INT64_MAX)] | None = None
    stream: bool | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def effort(self) -> ReasoningEffort | None:
        """How much the model shall think; None if the request does not say."""
        return None

    def shared_params(self, max_tokens: int | None) -> dict[str, Any]:
        """These fields by the names of the engine's parameters; None is a field without a value.

        Args:
            max_tokens: of the answer.
        """
        return {
            **{name: getattr(self, name) for name in SAMPLING_FIELDS},
            "max_tokens": max_tokens,
            "thinking_token_budget": thinking_budget(
                self.thinking_token_budget, self.effort, max_tokens
            ),
        }


class SamplingFields(CommonFields):
    """What chats and completions both take."""

    stop_token_ids: list[TokenId] | None = None
    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    structured_outputs: StructuredOutputsFields | None = None
    response_format: ResponseFormat | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    skip_special_tokens: Literal[False] | None = None

    def sampling_params(
        self,
        defaults: Mapping[str, Any],
        max_tokens: int | None,
        logprobs: int | None,
        constraint: OutputConstraint | None = None,
        prompt_logprobs: int | None = None,
    ) -> SamplingParams:
        """The engine's parameters; `constraint` is the answer's, if another field asks for one.

        Raises:
            ApiError: parameters that contradict each other.
        """
        if self.structured_outputs is not None:
            if constraint is not None:
                raise bad_request(
                    "structured_outputs and another field both ask for a form; give one of them.",
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

    def check_stream(self, is_stream: bool, has_options: bool) -> None:
        """Refuses fields that a stream cannot have, or must.

        Raises:
            ApiError: the first such field.
        """
        if has_options and not is_stream:
            raise bad_request("stream_options needs stream: true.", "stream_options")
        if is_stream and self.prompt_logprobs is not None:
            raise bad_request(
                "prompt_logprobs are not told in a stream; leave one of the two out.",
                "prompt_logprobs",
            )


def make_sampling_params(defaults: Mapping[str, Any], **fields: Any) -> SamplingParams:
    """The engine's parameters from a request's; None is a field that was not given.

    Raises:
        ApiError: the engine refuses them.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    if "seed" in given:
        given["seed"] %= 2**64  # OpenAI's may be negative
    chosen: dict[str, Any] = {"max_tokens": None, "clamp_max_tokens": True, **defaults, **given}
    if chosen.get("n", 1) > 1 and "temperature" not in given:
        chosen["temperature"] = chosen.get("temperature") or 1.0  # several are to be different
    try:
        return SamplingParams(**chosen)
    except UserError as error:
        raise bad_request(str(error)) from error


def make_constraint(kind: Callable[..., T], param: str, *args: Any, **fields: Any) -> T:
    """A form of an answer.

    Args:
        kind: `StructuredOutputs` or `ToolCalls`.
        param: the field that asks for it.
        args, fields: of the form.

    Raises:
        ApiError: the engine refuses it.
    """
    try:
        return kind(*args, **fields)
    except UserError as error:
        raise bad_request(str(error), param) from error


def auto_tool_calls(tools: list[dict[str, Any]], parallel: bool | None) -> ToolCalls | None:
    """The form of an answer that may call tools: a call that is begun keeps to a tool's schema.

    Args:
        tools: that may be called.
        parallel: whether there may be several calls; None is yes.
    """
    if not tools:
        return None
    fields: dict[str, Any] = {"choice": "auto", "parallel": parallel is not False}
    return make_constraint(ToolCalls, "tools", tools, **fields)


def default_sampling_params(folder: Path, source: str) -> dict[str, Any]:
    """Defaults of sampling.

    Args:
        folder: of the model.
        source: "auto" reads the model's `generation_config.json`: `do_sample: false` means greedy;
            "vllm" has none.
    """
    file = folder / "generation_config.json"
    if source == "vllm" or not file.is_file():
        return {}
    config = json.loads(file.read_text(encoding="utf-8"))
    found = {key: config[key] for key in GENERATION_CONFIG_KEYS if config.get(key) is not None}
    return {**found, "temperature": 0.0} if config.get("do_sample") is False else found


def _parse_logit_bias(given: Mapping[str, float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    for token in given:
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise bad_request(
                f"logit_bias has the token {token[:40]!r}; ids are whole numbers.", "logit_bias"
            )
    return {int(token): bias for token, bias in given.items()}
