"""Evaluates exported models on held-out wordings, paragraphs and operands.

    python -m demo_model.evaluate --model FOLDER [--draft FOLDER] [--per-maker 200]

`transformers` decodes greedily with the weights dequantized to bfloat16, because MLX's quantized
matmul is slow on Linux CPUs. As a cross-check, `mlx_lm` decodes a few examples with the quantized
weights. The score is the share of outputs that, after the reasoning, equal the expected answer.
Prints Markdown tables, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import torch
from mlx_lm import load, stream_generate
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from .corpus.example import Example
from .corpus.mixture import held_out_examples
from .corpus.showcase import PROMPTS
from .encoding import render_prompt
from .export import export_dequantized
from .seeds import HELD_OUT_SEED

BATCH_SIZE = 48
MAX_NEW_TOKENS = 128


@dataclass(frozen=True)
class Decoded:
    """An example with a model's output."""

    example: Example
    prompt_ids: list[int]
    output_ids: list[int]  # ends with the EOS token unless truncated
    text: str  # output without the reasoning

    @property
    def is_right(self) -> bool:
        """Whether the output after the reasoning equals the expected answer."""
        return self.text == self.example.answer


def answer_of(text: str) -> str:
    """Output after the reasoning; empty if the reasoning is truncated."""
    if text.startswith("<think>"):
        text = text.partition("</think>")[2]
    return text.removesuffix("<|im_end|>").strip("\n")


class Reference:
    """A quantized model, dequantized to bfloat16 and run by `transformers`."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        with tempfile.TemporaryDirectory() as scratch:
            export_dequantized(folder, Path(scratch))
            model = AutoModelForCausalLM.from_pretrained(scratch, dtype=torch.bfloat16)
        self.model: PreTrainedModel = model.eval()
        self.end = self.tokenizer.eos_token_id

    def encode(self, text: str) -> list[int]:
        """Encodes a rendered chat."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def decode(self, examples: list[Example], max_new_tokens: int) -> list[Decoded]:
        """Decodes all examples greedily, in batches of similar prompt length."""
        prompts = [self.encode(render_prompt(example)) for example in examples]
        order = sorted(range(len(examples)), key=lambda i: len(prompts[i]))
        outputs: dict[int, list[int]] = {}
        for start in range(0, len(order), BATCH_SIZE):
            chosen = order[start : start + BATCH_SIZE]
            rows = self._decode_batch([prompts[i] for i in chosen], max_new_tokens)
            outputs.update(zip(chosen, rows, strict=True))
        return [
            Decoded(example, prompts[i], outputs[i], answer_of(self.tokenizer.decode(outputs[i])))
            for i, example in enumerate(examples)
        ]

    @torch.inference_mode()
    def _decode_batch(self, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[self.end] * (longest - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        out = self.model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False
        )
        rows = out[:, longest:].tolist()
        return [row[: row.index(self.end) + 1] if self.end in row else row for row in rows]

    @torch.inference_mode()
    def count_agreement(self, decoded: Decoded) -> int:
        """Number of another model's output tokens that this model predicts from the same prefix."""
        ids = torch.tensor([decoded.prompt_ids + decoded.output_ids])
        predictions = self.model(ids).logits[0].argmax(-1)
        first = len(decoded.prompt_ids) - 1
        return sum(
            int(predicted == token)
            for predicted, token in zip(
                predictions[first:-1].tolist(), decoded.output_ids, strict=True
            )
        )


def percent(part: int, whole: int) -> float:
    """Percentage, rounded to one decimal; 0 if `whole` is 0."""
    return round(100 * part / whole, 1) if whole else 0.0


def accuracy_table(decoded: list[Decoded]) -> dict[str, float]:
    """Prints accuracy by kind and thinking mode; returns it by kind and overall, in percent."""
    results: dict[str, float] = {}
    print("| kind | thinking | n | exact % |\n|---|---|---:|---:|")
    for kind in sorted({d.example.kind for d in decoded}):
        of_kind = [d for d in decoded if d.example.kind == kind]
        for mode in (False, True):
            rows = [d.is_right for d in of_kind if d.example.enable_thinking is mode]
            print(f"| {kind} | {'on' if mode else 'off'} | {len(rows)} | "
                  f"{percent(sum(rows), len(rows))} |")  # fmt: skip
        results[kind] = percent(sum(d.is_right for d in of_kind), len(of_kind))
    results["overall"] = percent(sum(d.is_right for d in decoded), len(decoded))
    print(f"| **overall** | | {len(decoded)} | **{results['overall']}** |\n")
    return results


def agreement_table(draft: Reference, decoded: list[Decoded]) -> dict[str, float]:
    """Prints and returns the percentage of target tokens that the draft predicts, by kind."""
    right: dict[str, int] = defaultdict(int)
    total: dict[str, int] = defaultdict(int)
    for item in decoded:
        for key in (item.example.kind, "overall"):
            right[key] += draft.count_agreement(item)
            total[key] += len(item.output_ids)
    print("| kind | target's tokens | predicted by the draft % |\n|---|---:|---:|")
    results = {key: percent(right[key], total[key]) for key in sorted(total)}
    for key, value in results.items():
        print(f"| {key} | {total[key]} | {value} |")
    print()
    return results


def cross_check(folder: Path, decoded: list[Decoded], count: int) -> int:
    """Decodes `count` examples with `mlx_lm`; returns how many outputs are identical."""
    model, tokenizer = load(str(folder))
    agreed = 0
    for item in random.Random(HELD_OUT_SEED).sample(decoded, count):
        stream = stream_generate(model, tokenizer, item.prompt_ids, max_tokens=MAX_NEW_TOKENS)
        agreed += [response.token for response in stream] == item.output_ids
    return agreed


def show(reference: Reference) -> None:
    """Prints the outputs for the package's example prompts."""
    prompts = (PROMPTS["INTRODUCTION_PROMPT"], *PROMPTS["BATCH_PROMPTS"])
    for thinking in (False, True):
        print(f"Thinking {'on' if thinking else 'off'}:\n")
        chats = [
            Example(
                "show", ({"role": "user", "content": p}, {"role": "", "content": ""}), "", thinking
            )
            for p in prompts
        ]
        for item in reference.decode(chats, MAX_NEW_TOKENS):
            question = item.example.prompt[0]["content"].splitlines()[-1]
            text = reference.tokenizer.decode(item.output_ids).removesuffix("<|im_end|>")
            print(f"- {question}\n  {text!r}")
        print()


def main() -> None:
    """Evaluates the models given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument(
        "--per-maker", type=int, default=200, help="number of examples per question type"
    )
    parser.add_argument(
        "--cross-check", type=int, default=20, help="number of examples that mlx_lm decodes as well"
    )
    parser.add_argument("--failures", type=int, default=10, help="number of wrong outputs to print")
    arguments = parser.parse_args()
    mx.set_default_device(mx.cpu)
    reference = Reference(arguments.model)
    examples = held_out_examples(HELD_OUT_SEED, arguments.per_maker)
    decoded = reference.decode(examples, MAX_NEW_TOKENS)
    summary: dict[str, object] = {"exact": accuracy_table(decoded)}
    for item in [d for d in decoded if not d.is_right][: arguments.failures]:
        question = item.example.prompt[-1]["content"][-120:]
        print(
            f"- {item.example.kind}: {question!r} -> {item.text!r}, "
            f"expected {item.example.answer!r}"
        )
    print()
    if arguments.draft:
        summary["draft"] = agreement_table(Reference(arguments.draft), decoded)
    show(reference)
    if arguments.cross_check:
        agreed = cross_check(arguments.model, decoded, arguments.cross_check)
        summary["mlx_lm"] = f"{agreed}/{arguments.cross_check}"
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
