"""Worker that serves prompts in random order and prints outputs until killed.

python -m tests.engine.disk_cache.crash_worker DIRECTORY SEED RANKS
"""

import itertools
import json
import random
import sys
from pathlib import Path

from tests.engine.disk_cache.support import GREEDY, PROMPT, open_llm
from tiny_llm import LLM

NUM_PROMPTS = 8
NUM_PAGES = 60  # few pages, so that pages are evicted from memory as well as from disk
PAGE_BYTES = 2**16


def prompts() -> list[str]:
    return [f"{PROMPT[: 500 - 40 * i]} Number {i}. {PROMPT[:100]}" for i in range(NUM_PROMPTS)]


def options(ranks: int) -> dict:
    sizes = {"block_size": 16, "max_num_seqs": 2, "max_num_batched_tokens": 128}
    return {"tensor_parallel_size": ranks, **sizes}


def expected_tokens(ranks: int) -> list[list[int]]:
    llm = LLM("demo", enable_prefix_caching=False, **options(ranks))
    return [output.token_ids for output in llm.generate(prompts(), GREEDY)]


def main(directory: str, seed: str, ranks: str) -> None:
    llm = open_llm(
        Path(directory),
        kv_cache_bytes=NUM_PAGES * PAGE_BYTES,
        prefix_cache_disk_bytes=1.5 * NUM_PAGES * PAGE_BYTES,
        **options(int(ranks)),
    )
    order = random.Random(int(seed))
    for count in itertools.count():
        chosen = order.sample(range(NUM_PROMPTS), 2)
        outputs = llm.generate([prompts()[number] for number in chosen], GREEDY)
        llm.scheduler.check_integrity()
        answers = [[n, o.token_ids] for n, o in zip(chosen, outputs, strict=True)]
        hits = llm.disk_cache.stats.hit_tokens
        print(json.dumps({"count": count, "answers": answers, "hits": hits}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
