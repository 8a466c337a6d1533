"""Model and tokenizer specified by the command-line flags."""

import argparse
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ... import kernels
from ...engine.execution.tp_model import load_sharded
from ...engine.inputs.limits import encode_text
from ...engine.inputs.prompts import ChatOptions, encode_prompt
from ...errors import UserError
from ...models import default_model, load, load_weights
from ..parsing.arguments import ENGINE
from ..parsing.command import console


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model, independent of the implementation that runs it."""

    name: str
    mlx_model: Any
    tokenizer: Any
    enable_thinking: bool = False

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Encodes a conversation up to the start of the assistant's next turn.

        Without a chat template, the messages' text is joined with newlines.

        Raises:
            UserError: the template failed, or the prompt exceeds the context length.
        """
        max_tokens = self.mlx_model.args.max_position_embeddings
        if not self.tokenizer.has_chat_template:
            text = "\n".join(message["content"] for message in messages)
            return encode_text(self.tokenizer, "the prompt", text, max_tokens)
        chat = ChatOptions(self.enable_thinking)
        return encode_prompt(self.tokenizer, messages, chat, max_tokens)


def open_checkpoint(args: argparse.Namespace) -> Checkpoint:
    """Selects the device, prints the model's name and loads the model.

    Raises:
        UserError: see `set_device`, `models.load` and `load_sharded`.
    """
    set_device(args.device)
    name, reason = (args.model, None) if args.model is not None else default_model()
    console.print(f"model: {name}" + (f" ({reason})" if reason else ""), soft_wrap=True)
    mtp = args.speculative == "mtp"
    if args.tensor_parallel_size > 1:  # only for the engine; see `check_model_arguments`
        options = args.tensor_parallel_size, args.load_format or "auto", console, mtp
        mlx_model, tokenizer = load_sharded(name, *options)
    else:
        mlx_model, tokenizer = load_for_solution(args, name, mtp)
    enable_thinking = getattr(args, "enable_thinking", False)  # `bench` has no such flag
    if enable_thinking and not tokenizer.has_thinking:
        console.print("the model has no thinking mode: --enable-thinking is ignored")
        enable_thinking = False
    return Checkpoint(name, mlx_model, tokenizer, enable_thinking)


def load_for_solution(args: argparse.Namespace, name: str, mtp: bool = False) -> tuple[Any, Any]:
    """Loads weights and tokenizer for `args.solution`; `mtp`: see `load_weights`.

    The solution `ref` and the engine need only the weights; a learner's model may call mlx_lm's.
    """
    if args.load_format == "dummy":
        return load_weights(name, console, "dummy", mtp=mtp)
    if args.solution != "ref" and args.loader != ENGINE:
        return load(name, console)
    return load_weights(name, console, mtp=mtp)


def set_device(name: str | None) -> None:
    """Sets the device to "cpu" or "gpu"; None keeps MLX's default.

    Raises:
        UserError: the name is "gpu", but MLX found no GPU.
    """
    if name is None:
        return
    if name == "cpu":
        kernels.use_cpu()
    elif kernels.computes_on_cpu():
        if not mx.is_available(mx.Device(mx.gpu)):
            raise UserError("--device gpu: MLX found no GPU on this machine; omit the flag.")
        mx.set_default_device(mx.gpu)
