"""Agent: a model that calls tools until it answers.

With --workspace, the tools list, read and edit files in one folder; otherwise, they add, subtract
and multiply two numbers. Assistant messages come from a model in this process (--model), a server
(--url) or a JSON list (--script). With --script and --model, the model only prefills the prompts,
which fills its prefix cache.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..cli.parsing.arguments import API_KEY_VARIABLE, add_flag, api_key, in_range
from ..cli.parsing.command import CommandParser, console, print_text, read_prompt, run_command
from ..engine.llm import LLM
from ..errors import UserError
from .compaction import Compaction
from .loop import DEFAULT_MAX_STEPS, Agent, Transcript
from .models import ChatModel, LocalModel, Message, OpenAIModel, ScriptedModel
from .tools import calculator
from .workspace import DEFAULT_MAX_OUTPUT, MIN_OUTPUT, Workspace

MAX_SHOWN = 200  # maximum characters shown per tool result


def main(argv: Sequence[str] | None = None, prog: str = "agent") -> int:
    """Runs the command; returns 0 on an answer, 1 without one, 2 on a user error."""
    return run_command(prog, lambda: _run(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    parser = CommandParser(
        prog, __doc__, "tiny_llm.agent", skips_unwritten=True, own_folder="agent/"
    )
    flag = partial(add_flag, parser)
    flag("--task TEXT", "task, or - to read it from stdin", default="What is 4718 + 2593?")
    flag("--workspace DIR", "folder that the file tools list, read and edit")
    flag(
        "--max-output N",
        "maximum length of a --workspace tool result in characters",
        in_range(MIN_OUTPUT),
        DEFAULT_MAX_OUTPUT,
    )
    flag("--model NAME", "name, as for `main`; default: demo, or the first model at --url")
    flag("--url URL", "base URL of an OpenAI-compatible server, e.g. http://127.0.0.1:8000")
    flag("--api-key KEY", f"API key for --url; or set {API_KEY_VARIABLE}")
    flag(
        "--reasoning-effort LEVEL",
        "reasoning effort for --url: none, low, high …; `default` leaves it to the server; by "
        "default, none, as without --url",
    )
    flag("--script FILE", "assistant messages, as a JSON list")
    flag("--max-steps N", "maximum number of assistant messages", in_range(1), DEFAULT_MAX_STEPS)
    flag("--max-tokens N", "maximum tokens per message", in_range(1), 512)
    flag("--temperature T", "sampling temperature; 0 is greedy", in_range(0, convert=float), 0.0)
    flag("--seed N", "sampling seed", in_range(0), 0)
    flag("--compact N", "compact conversations longer than N characters", in_range(1))
    flag(
        "--compact-to N",
        "maximum characters after compaction; by default, half of --compact",
        in_range(1),
    )
    flag(
        "--solution",
        "tiny_llm (default): the learner's tree if it exists, else this package; ref or "
        "tiny_llm_ref: this package; mine: the learner's tree",
        ("tiny_llm", "ref", "tiny_llm_ref", "mine"),
    )
    return parser


def make_model(args: argparse.Namespace) -> ChatModel:
    if args.url is not None:
        if args.script is not None:
            raise UserError("--script has no effect with --url; omit one of them.")
        options = {"temperature": args.temperature, "max_tokens": args.max_tokens}
        if args.reasoning_effort != "default":
            options["reasoning_effort"] = args.reasoning_effort or "none"
        return OpenAIModel(args.url, args.model, api_key(args.api_key), **options)
    if args.reasoning_effort is not None:
        raise UserError("--reasoning-effort requires --url.")
    script = None
    if args.script is not None:
        try:
            text = Path(args.script).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise UserError(f"--script {args.script} cannot be read: {error}.") from error
        script = ScriptedModel.from_json(text)
        if args.model is None:
            return script
    return LocalModel(LLM(args.model or "demo"), args.temperature, args.max_tokens, script)


def describe(step: Sequence[Message]) -> list[str]:
    message, *results = step
    lines = [message["content"]] if message["content"] else []
    for call, result in zip(message.get("tool_calls") or [], results, strict=True):
        text = " ".join(result["content"].split())
        short = text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
        lines += [f"{call['function']['name']}({call['function']['arguments']})", f"    → {short}"]
    return lines


def _run(args: argparse.Namespace) -> int:
    compact = None
    if args.compact is not None:
        compact = Compaction(args.compact, args.compact_to or max(1, args.compact // 2))
    workspace = None if args.workspace is None else Workspace(args.workspace, args.max_output)
    tools = calculator() if workspace is None else workspace.tools()
    agent = Agent(make_model(args), tools, args.max_steps, compact=compact)
    transcript = agent.start(read_prompt(args.task))
    shown = len(transcript.messages)

    def show(transcript: Transcript) -> None:
        nonlocal shown
        print_text("\n".join(describe(transcript.messages[shown:])))
        shown = len(transcript.messages)

    agent.resume(transcript, args.seed, show)
    usage = agent.model.usage
    if usage.prompt_tokens:
        computed = usage.prompt_tokens - usage.cached_tokens
        console.print(
            f"{usage.requests} prompts of up to {usage.max_prompt_tokens} tokens | "
            f"{usage.prompt_tokens} tokens, {computed} computed, {usage.hit_rate:.0%} cached"
        )
    if transcript.stop_reason == "max_steps":
        console.print(f"no answer after {transcript.steps} steps; raise --max-steps")
    return 0 if transcript.stop_reason == "answer" else 1


if __name__ == "__main__":
    sys.exit(main())
