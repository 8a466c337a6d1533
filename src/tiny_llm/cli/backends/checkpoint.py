"""From the flags to a loaded model, before anybody's code runs it."""

import argparse
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ... import kernels
from ...engine.execution.tp_model import load_sharded
from ...engine.inputs.length_check import check_length
from ...errors import UserError
from ...models import default_model, load, load_weights
from ..parsing.command import console


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model, before anybody's code runs it.

    Attributes:
        name: as the user knows it.
        mlx_model, tokenizer: from `load_for_solution`.
        enable_thinking: what the chat template is told.
    """

    name: str
    mlx_model: Any
    tokenizer: Any
    enable_thinking: bool = False

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """The token ids of a conversation, up to where the assistant's next turn begins.

        A model without a chat template gets the text of the messages as it is.

        Raises:
            UserError: the template refuses the conversation, or it is far too long.
        """
        context = self.mlx_model.args.max_position_embeddings
        if not self.tokenizer.has_chat_template:
            text = "\n".join(message["content"] for message in messages)
            check_length(self.tokenizer, "the prompt", text, context)
            return self.tokenizer.encode(text)
        try:
            text = self.tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=self.enable_thinking,
            )
        except ValueError as error:
            reason = str(error).rstrip(".")
            raise UserError(f"the chat template refuses the chat: {reason}.") from error
        check_length(self.tokenizer, "the prompt", text, context)
        return self.tokenizer.encode(text, add_special_tokens=False)


def open_checkpoint(args: argparse.Namespace) -> Checkpoint:
    """Chooses the device, says which model is used, and loads it.

    Raises:
        UserError: see `set_device`, `models.load` and `load_sharded`; thinking, where a
            model cannot.
    """
    set_device(args.device)
    name, reason = (args.model, None) if args.model is not None else default_model()
    console.print(f"model: {name}" + (f" ({reason})" if reason else ""), soft_wrap=True)
    if args.tensor_parallel_size > 1:  # only the engine's flags allow it
        size = args.tensor_parallel_size
        mlx_model, tokenizer = load_sharded(name, size, args.load_format, console)
    else:
        mlx_model, tokenizer = load_for_solution(args, name)
    enable_thinking = getattr(args, "enable_thinking", False)  # `bench` reads no text
    if enable_thinking and not tokenizer.has_thinking:
        raise UserError(f"--enable-thinking: '{name}' has no thinking mode; leave the flag out.")
    return Checkpoint(name, mlx_model, tokenizer, enable_thinking)


def load_for_solution(args: argparse.Namespace, name: str) -> tuple[Any, Any]:
    """A model's weights and tokenizer for the code that `args.solution` names.

    Ours needs no more than `load_weights`; `mlx_lm`'s and a learner's may call `mlx_lm`'s model.

    Raises:
        UserError: see `models.load`.
    """
    if args.load_format == "dummy":
        return load_weights(name, console, "dummy")
    if args.solution != "tiny_llm":
        return load(name, console)
    return load_weights(name, console)


def set_device(name: str | None) -> None:
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
