"""From the flags to something that answers: a loaded model behind one streaming function."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .. import kernels
from ..errors import UserError
from ..generate import (
    DecodingLoop,
    GenerationResponse,
    SpeculativeDecoding,
    check_same_vocabulary,
    decode_by_recomputing,
    decode_with_cache,
    stream_generate,
    token_budget,
)
from ..models import default_model, dispatch_model, load, load_weights
from ..sampler import Sampler
from .arguments import LOADERS, check_model_arguments, sampler_from
from .command import console

Stream = Callable[[Sequence[int]], Iterator[GenerationResponse]]


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model, before anybody's code runs it.

    Attributes:
        name: as the user knows it.
        mlx_model, tokenizer: from `load_for`.
        enable_thinking: what the chat template is told.
    """

    name: str
    mlx_model: Any
    tokenizer: Any
    enable_thinking: bool = False

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """The token ids of a conversation, up to where the assistant's next turn begins.

        A model without a chat template gets the text of the messages as it is.
        """
        if not self.tokenizer.has_chat_template:
            return self.tokenizer.encode("\n".join(message["content"] for message in messages))
        return self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=self.enable_thinking
        )


@dataclass(frozen=True)
class Backend:
    """A model ready to answer.

    Attributes:
        stream: prompt ids -> one response a token.
        encode_chat: a conversation -> prompt ids.
        speculation: the loop that verifies drafts, if this package's does.
    """

    stream: Stream
    encode_chat: Callable[[list[dict[str, str]]], list[int]]
    speculation: SpeculativeDecoding | None = None


def open_backend(args: argparse.Namespace) -> Backend:
    """Checks the flags, says which model is used, and loads it.

    Raises:
        UserError: see `check_model_arguments`, `sampler_from` and `models.load`.
    """
    was_free = args.loader is None
    check_model_arguments(args)
    sampler = sampler_from(args)
    if was_free and args.solution == "tiny_llm" and not kernels.is_built():
        console.print(
            "loader: week1 (the C++ extension is not built; `pdm run build-ext` builds it)",
            soft_wrap=True,
        )
    checkpoint = open_checkpoint(args)
    tokenizer, max_tokens = checkpoint.tokenizer, args.max_tokens
    draft = None
    if args.draft_model is not None:
        draft = Checkpoint(args.draft_model, *load_for(args, args.draft_model))
        check_same_vocabulary(draft.tokenizer, tokenizer)
    if args.solution == "mlx":
        return Backend(_mlx_stream(checkpoint, draft, sampler, max_tokens), checkpoint.encode_chat)

    model = build_model(args, checkpoint)
    decode: DecodingLoop = decode_by_recomputing if args.loader == "week1" else decode_with_cache
    speculation = None
    if draft is not None:
        decode = speculation = SpeculativeDecoding(build_model(args, draft))

    def stream(prompt_ids: Sequence[int]) -> Iterator[GenerationResponse]:
        return stream_generate(decode, model, tokenizer, prompt_ids, sampler, max_tokens)

    return Backend(stream, checkpoint.encode_chat, speculation)


def open_checkpoint(args: argparse.Namespace) -> Checkpoint:
    """Chooses the device, says which model is used, and loads it.

    Raises:
        UserError: see `choose_device` and `models.load`; thinking, where a model cannot.
    """
    choose_device(args.device)
    name, reason = (args.model, None) if args.model is not None else default_model()
    console.print(f"model: {name}" + (f" ({reason})" if reason else ""), soft_wrap=True)
    mlx_model, tokenizer = load_for(args, name)
    enable_thinking = getattr(args, "enable_thinking", False)  # `bench` reads no text
    if enable_thinking and not tokenizer.has_thinking:
        raise UserError(f"--enable-thinking: '{name}' has no thinking mode; leave the flag out.")
    return Checkpoint(name, mlx_model, tokenizer, enable_thinking)


def load_for(args: argparse.Namespace, name: str) -> tuple[Any, Any]:
    """A model's weights and tokenizer for the code that `args.solution` names.

    Ours needs no more than `load_weights`; `mlx_lm`'s and a learner's may call `mlx_lm`'s model.

    Raises:
        UserError: see `models.load`.
    """
    if args.solution != "tiny_llm":
        return load(name, console)
    return load_weights(name, console)


def build_model(args: argparse.Namespace, checkpoint: Checkpoint) -> Any:
    """The model of the week that `args.loader` names.

    Raises:
        UserError: see `dispatch_model`.
    """
    options = {"enable_flash_attn": args.enable_flash_attn} if args.loader == "week2" else {}
    return dispatch_model(checkpoint.name, checkpoint.mlx_model, LOADERS[args.loader], **options)


def choose_device(name: str | None) -> None:
    """Makes "cpu" or "gpu" the device that computes; None leaves MLX's own choice.

    Raises:
        UserError: another name, or a GPU where there is none.
    """
    if name is None:
        return
    if name not in ("cpu", "gpu"):
        raise UserError(f"--device '{name}' is unknown; give cpu or gpu.")
    if name == "cpu":
        kernels.use_cpu()
    elif kernels.computes_on_cpu():
        if not mx.is_available(mx.Device(mx.gpu)):
            raise UserError("--device gpu: MLX finds no GPU on this machine; leave the flag out.")
        mx.set_default_device(mx.gpu)


def _mlx_stream(
    checkpoint: Checkpoint, draft: Checkpoint | None, sampler: Sampler, max_tokens: int | None
) -> Stream:
    """The baseline: mlx_lm's own generation, with our sampler."""
    import mlx_lm

    mlx_model = checkpoint.mlx_model

    def stream(prompt_ids: Sequence[int]) -> Iterator[GenerationResponse]:
        budget = token_budget(len(prompt_ids), max_tokens, mlx_model.args.max_position_embeddings)
        return mlx_lm.stream_generate(
            mlx_model,
            checkpoint.tokenizer,
            list(prompt_ids),
            max_tokens=budget,
            sampler=sampler,
            draft_model=None if draft is None else draft.mlx_model,
        )

    return stream
