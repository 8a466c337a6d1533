"""8-bit activations compared with 16-bit ones: speed and error.

    python -m benchmark.activation_bits --model FOLDER [--text FILE …] [--rounds N]

Two engines share the weights and run the same work alternately, after a warm-up round. To measure
the error, both engines predict each token of a text or, without --text, of random prompts. The
report has the fraction of equal predictions and the ratio of the perplexities.
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from tiny_llm import LLM, SamplingParams, load_weights
from tiny_llm.models.families.linear import ACTIVATION_BITS

from .command import benchmark_parser, print_json, run_command

WINDOW = 512  # tokens per prompt
CONTEXT = 32  # tokens before decoding
STEPS = 12  # decoding steps per measurement
BATCH_SIZES = (1, 4, 16)


def main() -> int:
    """Runs the command and returns the exit status."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="demo", help="name or folder of a quantized model")
    parser.add_argument(
        "--text", nargs="+", type=Path, default=[], help="UTF-8 files to predict (default: random)"
    )
    parser.add_argument(
        "--windows", type=int, default=8, help="number of prompts for measuring the error"
    )
    parser.add_argument("--rounds", type=int, default=5)
    return run_command("activation_bits", parser.parse_args(), run)


def run(args: argparse.Namespace) -> int:
    """Measures and prints speed and error; the last line of output is JSON."""
    weights = load_weights(args.model)
    llms = [
        LLM(
            weights,
            kv_cache_bytes=2**30,
            max_num_batched_tokens=WINDOW,
            max_num_seqs=max(BATCH_SIZES),
            enable_prefix_caching=False,
            activation_bits=bits,  # type: ignore[arg-type]
        )
        for bits in ACTIVATION_BITS
    ]
    speeds = {"prefill": compare(llms, 0, args.rounds)}
    speeds |= {f"decode {size}": compare(llms, size, args.rounds) for size in BATCH_SIZES}
    for name, (exact, rounded) in speeds.items():
        print(
            f"{name:10} tokens/s, median and best: {median(exact):7.1f} {max(exact):7.1f} exact, "
            f"{median(rounded):7.1f} {max(rounded):7.1f} in 8 bits: "
            f"{median(rounded) / median(exact):.2f} ×"
        )
    result = compare_predictions(llms, prompts(llms[0], args.text, args.windows))
    print(
        f"{result['tokens']} tokens: {100 * result['agreement']:.2f} % the same most likely token, "
        f"perplexity × {result['perplexity_ratio']:.5f}"
    )
    return print_json({"speeds": speeds, "error": result})


def prompts(llm: LLM, files: Sequence[Path], windows: int) -> list[list[int]]:
    """Prompts of `WINDOW` tokens each from the files' text; random without files."""
    rng = random.Random(3)
    ids = [rng.randrange(llm.vocab_size) for _ in range(WINDOW * windows)]
    if files:
        ids = list(llm.tokenizer.encode("".join(file.read_text("utf-8") for file in files)))
    return [ids[start : start + WINDOW] for start in range(0, len(ids), WINDOW)][:windows]


def compare(llms: Sequence[LLM], batch_size: int, rounds: int) -> list[list[float]]:
    """Measures the engines alternately; returns each engine's tokens/s by round."""
    speeds: list[list[float]] = [[] for _ in llms]
    for turn in range(-1, rounds):  # turn −1 warms up
        for index in sorted(range(len(llms)), reverse=turn % 2 == 1):
            speed = tokens_per_second(llms[index], batch_size)
            if turn >= 0:
                speeds[index].append(speed)
    return speeds


def tokens_per_second(llm: LLM, batch_size: int) -> float:
    """Tokens per second of prefill (`batch_size` 0) or of decoding a batch."""
    tokens = CONTEXT if batch_size else WINDOW
    params = SamplingParams(temperature=0, max_tokens=2 * STEPS, ignore_eos=True)
    started = time.perf_counter()
    prompt = [i % 997 + 1 for i in range(tokens)]
    requests = [llm.add_request(prompt, params) for _ in range(max(1, batch_size))]
    pending = set(requests)
    while pending:
        pending -= {output.request_id for output in llm.step()}
    if batch_size:
        started, tokens = time.perf_counter(), batch_size * STEPS
        for _ in range(STEPS):
            llm.step()
    seconds = time.perf_counter() - started
    for request in requests:
        llm.abort(request)
    return tokens / seconds


def compare_predictions(llms: Sequence[LLM], ids: list[list[int]]) -> dict[str, float]:
    """Compares predictions with 16-bit (first engine) and 8-bit activations."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    best: list[list[int]] = []
    losses = []
    for llm in llms:
        outputs = llm.generate(ids, params, use_tqdm=False)
        entries = [
            (token, logprobs)
            for output in outputs
            for token, logprobs in zip(
                output.prompt_token_ids, output.prompt_logprobs or [], strict=True
            )
            if logprobs is not None  # None: no token precedes the first one
        ]
        best.append([max(logprobs, key=logprobs.__getitem__) for _, logprobs in entries])
        losses.append(-sum(logprobs[token] for token, logprobs in entries) / len(entries))
    equal = sum(one == other for one, other in zip(*best, strict=True))
    return {
        "tokens": len(best[0]),
        "agreement": equal / len(best[0]),
        "perplexity_ratio": math.exp(losses[1] - losses[0]),
    }


if __name__ == "__main__":
    sys.exit(main())
