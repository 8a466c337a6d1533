"""`pdm run hybrid`: a hybrid model with random weights, for days 6.4 and 6.5.

`memory` runs a growing context through your DeltaNet and through the extension's kernels.
`conversation` serves the turns of a chat with and without the prefix cache's state checkpoints.
Random weights generate noise, but memory and cache hits do not depend on the weights.
"""

import argparse
import sys
from array import array
from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from .solution_flag import parse_with_tree, restart_in_tree
from .tasks import day_of

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 4608,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.25,
    },
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}
PAGE_SIZE, CHUNK = 32, 64  # tokens per page of the KV cache, tokens per forward pass
CONTEXTS = (64, 256, 1024)
TOLERANCE = 1e-3  # relative; rounding errors are below 1e-5
FACTS = "The trams of Lenmora are yellow. A festival takes place in September. "


def memory() -> Iterator[str]:
    """Table of memory use by context length.

    Raises:
        ValueError: the backends disagree.
    """
    from tiny_llm.engine.execution.paged_model import PagedModel, Span
    from tiny_llm.models.checkpoint.dummy import random_checkpoint
    from tiny_llm.models.loading import serving_model

    checkpoint, num_pages = random_checkpoint(CONFIG), max(CONTEXTS) // PAGE_SIZE
    mine, kernels = (
        PagedModel(serving_model("hybrid", checkpoint, PAGE_SIZE, backend), num_pages, 1)
        for backend in ("reference", "paged")
    )
    page_ids, num_layers = array("i", range(num_pages)), CONFIG["num_hidden_layers"]
    yield "context  4 attention layers  1 attention layer + 3 DeltaNets  difference of the logits"
    for start in range(0, max(CONTEXTS), CHUNK):
        ids = [(17 * position) % 4000 for position in range(start, start + CHUNK)]
        span = Span(ids, start, page_ids, 0 if start else -1, [(CHUNK - 1, 0)])
        actual, expected = (model.logits([span], [CHUNK - 1]) for model in (mine, kernels))
        difference = float(mx.max(mx.abs(actual - expected)) / mx.max(mx.abs(expected)))
        if not difference < TOLERANCE:
            raise ValueError(
                f"after {start + CHUNK} tokens, the logits of your DeltaNet and of the kernels "
                f"differ by {difference:.1e}; the limit is {TOLERANCE:g}."
            )
        context = start + CHUNK
        if context in CONTEXTS:
            keys_and_values = context // PAGE_SIZE * mine.row_bytes("page")
            states = mine.row_bytes("state")
            dense, hybrid = (
                num_layers * keys_and_values,
                f"{_kib(keys_and_values)} + {_kib(states)}",
            )
            yield f"{context:7}  {_kib(dense):>18}  {hybrid:>31}  {difference:24.1e}"


def _kib(num_bytes: int) -> str:
    return f"{num_bytes / 1024:,.0f} KiB"


def turns(number: int) -> Iterator[list[dict[str, str]]]:
    """Yields a chat's messages before each of `number` responses."""
    messages = [{"role": "system", "content": f"You know Lenmora. {FACTS * 12}"}]
    for turn in range(number):
        messages.append({"role": "user", "content": f"Question {turn}. {FACTS * 3}"})
        yield list(messages)
        messages.append({"role": "assistant", "content": f"Answer {turn}. {FACTS * 4}"})


def conversation(number: int = 6) -> Iterator[str]:
    """Table of cached prompt tokens and time to first token, one row per turn."""
    from tiny_llm import LLM, SamplingParams, load
    from tiny_llm.models.checkpoint.dummy import random_checkpoint

    config = {**CONFIG, "torch_dtype": "bfloat16", "quantization": {"bits": 4, "group_size": 64}}
    model: Any = random_checkpoint(config), load("demo")[1]
    cold, warm = (
        LLM(model, kv_cache_bytes=2**25, max_num_seqs=2, enable_prefix_caching=caching)
        for caching in (False, True)
    )
    params = SamplingParams(temperature=0, max_tokens=1)
    yield "             without checkpoints      with checkpoints"
    yield "turn  prompt  cached  first token  cached  first token"
    for llm in (cold, warm):
        llm.generate([[1, 2, 3]], params)  # warm up
    for turn, messages in enumerate(turns(number), 1):
        cells = []
        for llm in (cold, warm):
            [output] = llm.generate([messages], params)
            if output.error is not None:
                raise ValueError(output.error)
            milliseconds = 1000 * (output.metrics.ttft or 0)
            cells.append(f"{output.num_cached_tokens:6}  {milliseconds:8.0f} ms")
        yield f"{turn:4}  {len(output.prompt_token_ids):6}  {'  '.join(cells)}"


TABLES = {"memory": memory, "conversation": conversation}


def main(argv: list[str] | None = None) -> int:
    """Prints a table. Exit status: 0; 1 if logits differ or a task is unwritten."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="hybrid", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("table", choices=TABLES)
    args, tree = parse_with_tree(parser, argv)
    day = day_of(6, 4 if args.table == "memory" else 5)
    restart_in_tree(tree, "tools.course.hybrid_demo", argv, day=day)
    try:
        for line in TABLES[args.table]():
            print(line, flush=True)
    except (NotImplementedError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
