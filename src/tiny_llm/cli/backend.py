"""From the flags to something that answers: a loaded model behind one streaming function."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..errors import UserError
from ..generate import (
    GenerationResponse,
    decode_by_recomputing,
    decode_with_cache,
    stream_generate,
    token_budget,
)
from ..models import default_model, dispatch_model, load
from ..sampler import Sampler
from .arguments import LOADERS, check_model_arguments, sampler_from
from .command import console

Stream = Callable[[Sequence[int]], Iterator[GenerationResponse]]


@dataclass(frozen=True)
class Backend:
    """A model ready to answer.

    Attributes:
        tokenizer: as `mlx_lm.load` returns it.
        stream: prompt ids -> one response a token.
        enable_thinking: what the chat template is told.
    """

    tokenizer: Any
    stream: Stream
    enable_thinking: bool

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """The token ids of a conversation, up to where the assistant's next turn begins.

        A model without a chat template gets the text of the messages as it is.
        """
        if not self.tokenizer.has_chat_template:
            return self.tokenizer.encode("\n".join(message["content"] for message in messages))
        return self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=self.enable_thinking
        )


def open_backend(args: argparse.Namespace) -> Backend:
    """Checks the flags, says which model is used, and loads it.

    Raises:
        UserError: see `check_model_arguments`, `sampler_from` and `models.load`.
    """
    check_model_arguments(args)
    sampler = sampler_from(args)
    choose_device(args.device)
    name, reason = (args.model, None) if args.model is not None else default_model()
    console.print(f"model: {name}" + (f" ({reason})" if reason else ""), soft_wrap=True)
    mlx_model, tokenizer = load(name, console)
    if args.enable_thinking and not tokenizer.has_thinking:
        raise UserError(f"--enable-thinking: '{name}' has no thinking mode; leave the flag out.")
    if args.solution == "mlx":
        draft = load(args.draft_model, console)[0] if args.draft_model is not None else None
        stream = _mlx_stream(mlx_model, draft, tokenizer, sampler, args.max_tokens)
    else:
        week = LOADERS[args.loader]
        model = dispatch_model(name, mlx_model, week)
        decode = decode_by_recomputing if week == 1 else decode_with_cache

        def stream(prompt_ids: Sequence[int]) -> Iterator[GenerationResponse]:
            return stream_generate(decode, model, tokenizer, prompt_ids, sampler, args.max_tokens)

    return Backend(tokenizer, stream, args.enable_thinking)


def choose_device(name: str | None) -> None:
    """Makes "cpu" or "gpu" MLX's default device; None leaves MLX's own choice.

    Raises:
        UserError: another name, or a GPU where MLX has none.
    """
    if name is None:
        return
    if name not in ("cpu", "gpu"):
        raise UserError(f"--device '{name}' is unknown; give cpu or gpu.")
    device = mx.Device(mx.cpu if name == "cpu" else mx.gpu)
    if not mx.is_available(device):
        raise UserError("--device gpu: MLX finds no GPU on this machine; leave the flag out.")
    mx.set_default_device(device)


def _mlx_stream(
    mlx_model: Any, draft_model: Any, tokenizer: Any, sampler: Sampler, max_tokens: int | None
) -> Stream:
    """The baseline: mlx_lm's own generation, with our sampler."""
    import mlx_lm

    def stream(prompt_ids: Sequence[int]) -> Iterator[GenerationResponse]:
        budget = token_budget(len(prompt_ids), max_tokens, mlx_model.args.max_position_embeddings)
        return mlx_lm.stream_generate(
            mlx_model,
            tokenizer,
            list(prompt_ids),
            max_tokens=budget,
            sampler=sampler,
            draft_model=draft_model,
        )

    return stream
