"""Model, tokenizer and `LLM` specified by the command-line flags."""

import argparse
import secrets
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ... import kernels
from ...engine.engine_args import EngineArgs
from ...engine.execution.tp_model import load_sharded
from ...engine.inputs.limits import encode_text
from ...engine.inputs.prompts import ChatOptions, encode_prompt
from ...engine.inputs.sampling_params import SamplingParams
from ...engine.llm import LLM
from ...engine.scheduling.config import Listener
from ...errors import UserError
from ...models import default_model, load, load_weights
from ..parsing.arguments import ENGINE, given_options
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
        options = args.tensor_parallel_size, args.load_format or "auto", mtp
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


def open_llm(
    args: argparse.Namespace,
    checkpoint: Checkpoint,
    *,
    max_num_seqs: int,
    prefill_step: int,
    max_model_len: int | None = None,
    listener: Listener | None = None,
) -> LLM:
    """Builds an `LLM` from the checkpoint and the draft model given by the flags.

    `prefill_step` is the number of prompt tokens per step, in addition to the decode tokens.
    """
    options: dict[str, Any] = given_options(args, EngineArgs)
    options["tensor_parallel_size"] = 1  # the checkpoint is already sharded
    if args.draft_model is not None:
        options["draft_model"] = load_for_solution(args, args.draft_model)
    max_drafts = EngineArgs("", **options).max_drafts
    return LLM(
        (checkpoint.mlx_model, checkpoint.tokenizer),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs * (1 + max_drafts) + prefill_step,
        max_model_len=max_model_len,
        seed=secrets.randbits(63),  # for requests without a seed
        listener=listener,
        **options,
    )


def sampling_params_from_args(
    args: argparse.Namespace, max_tokens: int | None, ignore_eos: bool = False
) -> SamplingParams:
    """Sampling parameters from the flags; greedy if there are none (`bench`)."""
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=getattr(args, "sampler_temp", 0.0),
        top_p=getattr(args, "sampler_top_p", None) or 1.0,
        top_k=getattr(args, "sampler_top_k", None) or 0,
        seed=getattr(args, "seed", None),
        ignore_eos=ignore_eos,
    )
