"""Checks that llama.cpp and tiny-llm predict the same tokens.

    python -m benchmark.check_gguf --llama-python PYTHON

A speed comparison is meaningless if the systems compute different models. tiny-llm generates greedy
outputs with the demo model; llama.cpp predicts the token after each token of prompt and output,
from GGUF files written by `gguf_file`. With float32 weights, all predictions must agree except for
ties: between 16 and 32, tiny-llm's bfloat16 logits are multiples of 1/8. Requantization to Q4_0
changes some predictions, so for Q4_0 the agreement is only reported. All predictions of a small
Qwen3.5 model with random float32 weights must agree, without ties.
"""

import argparse
import itertools
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from tiny_llm import LLM, Qwen3ModelWeek2, SamplingParams, load_weights, make_sampler
from tiny_llm.demo import TARGET_PATH
from tiny_llm.generate import decode_with_cache, read_tokens

from .agreement import Agreement, agreement
from .command import benchmark_parser, print_json, run_command
from .gguf_file import TYPES, write_gguf
from .make_checkpoint import shape_config, write_checkpoint
from .roofline import usable_threads
from .systems.client import WorkerProcess

QUESTIONS = (
    "What is the capital of France?",
    "What is a KV cache?",
    "What is 17 + 25?",
    "Who are you?",
    "What is the capital of Japan?",
    "What is flash attention?",
)
MAX_TOKENS = 96
# Config overrides for a small Qwen3.5 model with three value heads per key head.
VOCAB_SIZE = 1024
SMALL_HYBRID = {
    "hidden_size": 128,
    "num_hidden_layers": 8,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "vocab_size": VOCAB_SIZE,
    "torch_dtype": "float32",
}
# Maximum gap of a tie, relative to the highest logit: at most two bfloat16 ulps.
TIE_TOLERANCE = 2.0**-7


@dataclass(frozen=True)
class Text:
    """A prompt and tiny-llm's greedy output."""

    ids: list[int]  # prompt and output
    prompt_tokens: int
    logits: np.ndarray  # after each token: tokens × vocabulary size

    def agreement(self, predicted: list[int]) -> Agreement:
        """Compares the token predicted after each of `ids` with tiny-llm's most likely token."""
        tie = TIE_TOLERANCE * np.abs(self.logits.max(-1))
        return agreement(self.logits, predicted, tie, slice(self.prompt_tokens - 1, -1))


def demo_texts() -> list[Text]:
    """Generates a greedy output for each prompt."""
    mlx_model, tokenizer = load_weights("demo")
    model = Qwen3ModelWeek2(mlx_model)
    sampler = make_sampler(temp=0)
    texts = []
    for thinking, question in itertools.product((False, True), QUESTIONS):
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, enable_thinking=thinking
        )
        ids = list(prompt)
        for token in read_tokens(decode_with_cache(model, prompt, sampler)):
            ids.append(token)
            if token in tokenizer.eos_token_ids or len(ids) == len(prompt) + MAX_TOKENS:
                break
        logits = model(mx.array([ids]), 0, model.create_kv_cache())[0]
        texts.append(Text(ids, len(prompt), np.array(logits.astype(mx.float32))))
    return texts


def predict_hybrid(folder: Path) -> Text:
    """Writes a random Qwen3.5 checkpoint; returns tiny-llm's predictions.

    The engine returns no logits, so each predicted token becomes a one-hot row.
    """
    write_checkpoint(folder, {**shape_config("qwen3.5-4b"), **SMALL_HYBRID}, dtype=mx.float32)
    ids = np.random.default_rng(0).integers(VOCAB_SIZE, size=60).tolist()
    llm = LLM(str(folder), kv_cache_bytes=1 << 28)
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    prefixes = [ids[: end + 1] for end in range(len(ids))]
    predicted = [output.token_ids[0] for output in llm.generate(prefixes, params)]
    return Text(ids, 1, np.eye(VOCAB_SIZE, dtype=np.float32)[predicted])


def compare(python: str, file: Path, texts: list[Text]) -> Agreement:
    """Compares llama.cpp's predictions for all texts with tiny-llm's."""
    arguments = [str(file), "--threads", str(usable_threads())]
    total = Agreement()
    with closing(WorkerProcess(python, "llama_cpp_worker", arguments)) as worker:
        for text in texts:
            result = worker.run({"kind": "predict", "ids": text.ids})
            total += text.agreement(result["tokens"])
    return total


def main() -> int:
    """Prints the agreement for each GGUF file; the last line of output is JSON."""
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--llama-python", default=sys.executable, help="Python interpreter with llama-cpp-python"
    )
    return run_command("check_gguf", parser.parse_args(), run)


def run(args: argparse.Namespace) -> int:
    """Compares llama.cpp's predictions with tiny-llm's for each GGUF file."""
    texts = demo_texts()
    result: dict[str, Agreement] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in TYPES:
            file = Path(folder) / f"demo-{kind}.gguf"
            write_gguf(TARGET_PATH, file, kind)
            result[kind] = compare(args.llama_python, file, texts)
            print(f"{kind}: {result[kind]}")
        text = predict_hybrid(Path(folder) / "hybrid")
        write_gguf(Path(folder) / "hybrid", Path(folder) / "hybrid.gguf", "f32")
        result["hybrid"] = compare(args.llama_python, Path(folder) / "hybrid.gguf", [text])
        print(f"hybrid: {result['hybrid']}")
    counts = {kind: asdict(agreement) for kind, agreement in result.items()}
    return print_json(counts, int(not (result["f32"].all_agree and result["hybrid"].all_agree)))


if __name__ == "__main__":
    sys.exit(main())
