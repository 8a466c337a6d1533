"""`python -m tests.server.scripted_model SCRIPT …`: serves a scripted model.

Only the model is scripted: templates, parsers, grammars, scheduler and prefix cache are real.
SCRIPT is a JSON file with a list of [marker, texts, keys] entries. The first entry whose marker
occurs in the prompt applies. The texts are said in turn: each has a key, which occurs in the prompt
once it has been said. Without keys, the prompt's assistant messages are counted. The model follows
the text as far as the grammar allows. If the prompt ends with `</think>`, it skips the reasoning.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from tiny_llm.cli import serve
from tiny_llm.demo import TARGET_PATH
from tiny_llm.engine.core import EngineCore
from tiny_llm.engine.execution.paged_model import Span
from tiny_llm.engine.scheduling.request import EngineRequest, SchedulerOutput

Script = list[list[Any]]

END = "<|im_end|>"
ASSISTANT = "<|im_start|>assistant"
CLOSED_REASONING = "</think>\n\n"


def tool_call(name: str, **arguments: object) -> str:
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def write_checkpoint(folder: Path, max_position_embeddings: int) -> Path:
    """Links the demo checkpoint into `folder`, with a longer context."""
    folder.mkdir()
    for file in TARGET_PATH.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = json.loads((TARGET_PATH / "config.json").read_text())
    config["max_position_embeddings"] = max_position_embeddings
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class ScriptedModel:
    """Patches an engine's runner: logits peak at the script's next token."""

    def __init__(self, core: EngineCore, script: Script):
        self._tokenizer = core.tokenizer
        self._vocab_size = core.vocab_size
        self._script = script
        self._step = SchedulerOutput(0, ())
        self._run = core.runner.run
        self._answers: dict[tuple[int, ...], str] = {}
        core.runner.run = self.run  # type: ignore[method-assign]
        core.runner.target.logits = self.logits  # type: ignore[method-assign]

    def run(self, step: SchedulerOutput) -> Any:
        self._step = step
        return self._run(step)

    def logits(self, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        """Returns logits, len(rows)×vocab_size; see `PagedModel`."""
        targets, row = [], 0
        for chunk, span in zip(self._step.chunks, spans, strict=True):
            request = chunk.request
            self._check(request)
            tokens = [*request.token_ids[: chunk.start], *span.token_ids]
            for length in range(chunk.start + 1, len(tokens) + 1):
                if row in rows:
                    targets.append(self._next_token(tokens[:length], request.num_prompt_tokens))
                row += 1
        peaks = mx.array(targets)[:, None] == mx.arange(self._vocab_size)
        return mx.where(peaks, 1e6, 0.0).astype(mx.float32)

    def _check(self, request: EngineRequest) -> None:
        """Fails a request if a grammar makes its output deviate from the script."""
        output_text = self._tokenizer.decode(request.token_ids[request.num_prompt_tokens :])
        answer = self._answer(tuple(request.token_ids[: request.num_prompt_tokens]))
        if not answer.startswith(output_text.removesuffix("\ufffd")):
            raise ValueError(f"the script is {answer!r}, but the output is {output_text!r}")

    def _next_token(self, tokens: list[int], prompt_len: int) -> int:
        if len(tokens) < prompt_len:  # inside the prompt; only prompt logprobs read these logits
            return 0
        answer, output = self._answer(tuple(tokens[:prompt_len])), tokens[prompt_len:]
        ids: list[int] = self._tokenizer.encode(answer + END, add_special_tokens=False)
        if output == ids[: len(output)]:
            return ids[min(len(output), len(ids) - 1)]
        # Draft tokens of the grammar may contradict the script, or may be another tokenization of
        # its text, so the rest of the script is tokenized again.
        output_text = self._tokenizer.decode(output)
        rest = answer.removeprefix(output_text) if answer.startswith(output_text) else ""
        token: int = self._tokenizer.encode(rest + END, add_special_tokens=False)[0]
        return token

    def _answer(self, prompt_ids: tuple[int, ...]) -> str:
        if prompt_ids not in self._answers:
            prompt = self._tokenizer.decode(list(prompt_ids))
            texts, *keys = next(rest for marker, *rest in self._script if marker in prompt)
            turn = sum(key in prompt for key in keys[0]) if keys else prompt.count(ASSISTANT) - 1
            text = texts[min(turn, len(texts) - 1)]
            if prompt.endswith(CLOSED_REASONING):
                text = text.partition(CLOSED_REASONING)[2] or text
            self._answers[prompt_ids] = text
        return self._answers[prompt_ids]


def main() -> int:
    script = json.loads(Path(sys.argv[1]).read_text())
    init = EngineCore.__init__

    def init_with_script(self: EngineCore, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        ScriptedModel(self, script)

    EngineCore.__init__ = init_with_script  # type: ignore[method-assign]
    return serve.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
