"""Streaming generation for one prompt."""

import argparse
import sys
from collections.abc import Sequence

from ..demo import INTRODUCTION_PROMPT
from ..errors import UserError
from ..generate import GenerationResponse, SpeculationStatistics
from .backends.local import open_backend
from .parsing.arguments import add_flag, add_model_arguments, add_sampling_arguments
from .parsing.command import CommandParser, print_text, read_prompt, run_command


def main(argv: Sequence[str] | None = None, prog: str = "main") -> int:
    return run_command(prog, lambda: _answer(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, __doc__, "tiny_llm.cli.main")
    add_flag(
        parser, "--prompt TEXT", "prompt, or - to read it from stdin", default=INTRODUCTION_PROMPT
    )
    add_model_arguments(parser, "main")
    add_sampling_arguments(parser)
    return parser


def statistics_line(
    response: GenerationResponse, drafts: SpeculationStatistics | None = None
) -> str:
    return (
        f"prompt: {response.prompt_tokens} tokens, {response.prompt_tps:.1f} tokens/s | "
        f"generation: {response.generation_tokens} tokens, {response.generation_tps:.1f} tokens/s "
        + (f"| {drafts} " if drafts is not None else "")
        + f"| peak memory: {response.peak_memory:.3f} GB"
    )


def _answer(args: argparse.Namespace) -> int:
    prompt = read_prompt(args.prompt)
    if not prompt.strip():
        raise UserError("the prompt is empty; pass text with --prompt.")

    backend = open_backend(args)
    messages = [{"role": "user", "content": prompt}]
    for response in backend.stream(backend.checkpoint.encode_chat(messages)):
        print_text(response.text, end="")
    print(f"\n\n{statistics_line(response, backend.speculation_statistics())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
