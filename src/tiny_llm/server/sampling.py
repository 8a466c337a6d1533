"""Sampling: the fields that OpenAI's protocols share, and the defaults of a model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ..engine.sampling_params import SamplingParams
from ..errors import UserError
from .errors import refused

# Keys of generation_config.json that are defaults here, as in vLLM.
KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
LARGEST = 2**63 - 1

Count = Annotated[int, Field(ge=1, le=LARGEST)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Body(BaseModel):
    """A request's body: a field that is not known is refused, and so is a value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SamplingFields(Body):
    """What chats and completions both take."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=LARGEST)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=LARGEST)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, le=LARGEST)] | None = None
    structured_outputs: dict[str, Any] | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None

    def check_honoured(self) -> None:
        """Refuses what this server cannot do yet.

        Raises:
            ApiError: the first such field.
        """
        if self.min_tokens:
            raise refused("min_tokens is not supported; leave it out.", "min_tokens")
        if self.structured_outputs is not None:
            raise refused(
                "structured_outputs is not supported; leave it out.", "structured_outputs"
            )

    def sampling_params(
        self, defaults: Mapping[str, Any], max_tokens: int | None, logprobs: int | None
    ) -> SamplingParams:
        """The engine's parameters.

        Raises:
            ApiError: parameters that contradict each other.
        """
        return make_params(
            defaults,
            max_tokens=max_tokens,
            logprobs=logprobs,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            seed=self.seed,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            n=self.n,
            logit_bias=_biases(self.logit_bias),
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            ignore_eos=self.ignore_eos,
        )


def make_params(defaults: Mapping[str, Any], **fields: Any) -> SamplingParams:
    """The engine's parameters from a request's; None is a field that was not given.

    Raises:
        ApiError: the engine refuses them.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    if "seed" in given:
        given["seed"] %= 2**64  # OpenAI's may be negative
    chosen: dict[str, Any] = {"max_tokens": None, **defaults, **given}
    if chosen.get("n", 1) > 1 and "temperature" not in given:
        chosen["temperature"] = chosen.get("temperature") or 1.0  # several are to be different
    try:
        return SamplingParams(**chosen)
    except UserError as error:
        raise refused(str(error)) from error


def read_defaults(folder: Path, source: str) -> dict[str, Any]:
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
    found = {key: config[key] for key in KEYS if config.get(key) is not None}
    return {**found, "temperature": 0.0} if config.get("do_sample") is False else found


def _biases(given: Mapping[str, float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    for token in given:
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise refused(
                f"logit_bias has the token {token[:40]!r}; ids are whole numbers.", "logit_bias"
            )
    return {int(token): bias for token, bias in given.items()}
