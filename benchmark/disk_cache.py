"""Prefix cache on disk: time to first token, and the cost of writing.

    python -m benchmark.disk_cache [--model FOLDER] [--tokens 8192] [--directory DIR]

Weights are random, by default in the shapes of Qwen3-0.6B in 4 bits. Each phase is a new process,
as after a restart, and before the disk phase the system forgets the page files' contents. Then two
engines in one process prefill different prompts in turns, one of them with a directory.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiny_llm import LLM, SamplingParams
from tiny_llm.kv_cache.disk.page_file import drop_from_page_cache

from .make_checkpoint import shape_config
from .timing import Times

ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", help="folder with a config.json (Qwen3-0.6B's shapes)")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of the prompt")
    parser.add_argument("--turns", type=int, default=5, help="prompts per engine, written behind")
    parser.add_argument("--directory", type=Path, help="where to put the cache (temporary)")
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.phase == "turns":
        print(json.dumps(run_turns(args.model, args.directory, args.turns)))
        return 0
    if args.phase is not None:
        print(json.dumps(run_phase(args.model, args.directory, args.tokens)))
        return 0
    with tempfile.TemporaryDirectory(dir=args.directory) as folder:
        model = args.model or str(write_config(Path(folder) / "model"))
        cache = Path(folder) / "cache"
        command = ["--model", model, "--directory", str(cache), "--tokens", str(args.tokens)]
        first = run_process([*command, "--phase", "first"])
        for file in (cache / "pages").glob("*/*"):
            drop_from_page_cache(file)
        again = run_process([*command, "--phase", "again"])
        assert first["tokens"] == again["tokens"], "other tokens from disk"
        print(f"cold    {first['seconds'][0]:7.3f} s")
        print(f"memory  {first['seconds'][1]:7.3f} s")
        print(f"disk    {again['seconds'][0]:7.3f} s, {again['hits']} tokens")
        print(f"stored  {first['bytes'] / 1e6:,.0f} MB; start {again['start']:.2f} s")
        turns = run_process([*command, "--turns", str(args.turns), "--phase", "turns"])
        without, behind = (Times.of(seconds) for seconds in turns["seconds"])
        print(
            f"512 tokens without / with a directory: median {without.median:.3f} / "
            f"{behind.median:.3f} s, best {without.minimum:.3f} / {behind.minimum:.3f} s"
        )
    return 0


def write_config(folder: Path) -> Path:
    """Writes the config of Qwen3-0.6B in 4 bits."""
    folder.mkdir(parents=True)
    config = shape_config("qwen3-0.6b") | {"quantization": {"group_size": 128, "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run_process(flags: Sequence[str]) -> dict[str, Any]:
    """Runs a phase in a new process and returns its result."""
    command = [sys.executable, "-m", "benchmark.disk_cache", *flags]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def build(model: str, directory: Path | None, num_tokens: int) -> LLM:
    """Builds an engine with memory for one prompt and random weights."""
    return LLM(
        model,
        load_format="dummy",
        kv_cache_bytes=(num_tokens + 256) * 2**17,
        prefix_cache_dir=directory,
        max_num_seqs=4,
    )


def first_token(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """Returns the time to the first token, and the token."""
    started = time.perf_counter()
    [output] = llm.generate([prompt], ONE_TOKEN)
    return time.perf_counter() - started, output.token_ids[0]


def run_phase(model: str, directory: Path, num_tokens: int) -> dict[str, Any]:
    """Times the same prompt twice in one engine."""
    started = time.perf_counter()
    llm = build(model, directory, num_tokens)
    start = time.perf_counter() - started
    prompt = [(7 * i) % 1000 + i // 1000 for i in range(num_tokens)]
    first_token(llm, [5] * 40)
    (cold, first), (again, second) = first_token(llm, prompt), first_token(llm, prompt)
    cache = llm.core.disk_cache
    assert cache is not None
    llm.close()
    return {
        "seconds": [cold, again],
        "tokens": [first, second],
        "hits": cache.stats.hit_tokens,
        "bytes": cache.stats.num_bytes,
        "start": start,
    }


def run_turns(model: str, directory: Path, turns: int) -> dict[str, Any]:
    """Times prompts of 512 tokens, in turns without and with writing behind."""
    engines = [build(model, None, 1024), build(model, directory, 1024)]
    seconds: list[list[float]] = [[], []]
    for turn in range(-1, turns):
        for number, llm in enumerate(engines):
            prompt = [(turn + 2) * 31 + i % 800 for i in range(512)]
            time_taken, _ = first_token(llm, prompt)
            if turn >= 0:
                seconds[number].append(time_taken)
    return {"seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
