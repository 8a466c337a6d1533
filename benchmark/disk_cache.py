"""Prefix cache on disk: time to first token, and cost of the disk writes.

    python -m benchmark.disk_cache [--model FOLDER] [--tokens 8192] [--directory DIR]

Weights are random, by default in the shapes of 4-bit Qwen3-0.6B. Each phase runs in a new process,
as after a restart; before the disk phase, the cache files are dropped from the OS page cache.
Finally, two engines in one process, one without a cache directory, alternately prefill different
prompts; the difference between their times is the cost of the writes.
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
from tiny_llm.kv_storage.page_store import drop_from_page_cache

from .command import benchmark_parser, print_json, run_command
from .make_checkpoint import shape_config
from .systems.client import WorkerError
from .timing import Times

ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)


def main() -> int:
    """Parses the command line and runs the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", help="folder with a config.json (default: Qwen3-0.6B)")
    parser.add_argument("--tokens", type=int, default=8192, help="prompt length in tokens")
    parser.add_argument(
        "--rounds", type=int, default=5, help="prompts per engine in the alternating phase"
    )
    parser.add_argument("--directory", type=Path, help="parent folder of the temporary cache")
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    return run_command("disk_cache", parser.parse_args(), run)


def run(args: argparse.Namespace) -> int:
    """Runs all phases in child processes, or with --phase a single phase in this process."""
    if args.phase == "alternate":
        return print_json(alternate(args.model, args.directory, args.rounds))
    if args.phase is not None:
        return print_json(run_phase(args.model, args.directory, args.tokens))
    with tempfile.TemporaryDirectory(dir=args.directory) as folder:
        model = args.model or str(write_config(Path(folder) / "model"))
        cache = Path(folder) / "cache"
        command = ["--model", model, "--directory", str(cache), "--tokens", str(args.tokens)]
        before = run_process([*command, "--phase", "before-restart"])
        for file in (cache / "pages").glob("*/*"):
            drop_from_page_cache(file)
        after = run_process([*command, "--phase", "after-restart"])
        assert before["tokens"] == after["tokens"], "pages from disk changed the output"
        print(f"cold    {before['seconds'][0]:7.3f} s")
        print(f"memory  {before['seconds'][1]:7.3f} s")
        print(f"disk    {after['seconds'][0]:7.3f} s, {after['hits']} tokens hit")
        print(f"stored  {before['bytes'] / 1e6:,.0f} MB; engine startup {after['startup']:.2f} s")
        result = run_process([*command, "--rounds", str(args.rounds), "--phase", "alternate"])
        memory_only, with_disk = (Times.of(seconds) for seconds in result["seconds"])
        print(
            f"512 tokens without / with disk writes: median {memory_only.median:.3f} / "
            f"{with_disk.median:.3f} s, best {memory_only.minimum:.3f} / {with_disk.minimum:.3f} s"
        )
        seconds = {
            "cold": before["seconds"][0],
            "memory": before["seconds"][1],
            "disk": after["seconds"][0],
            "startup": after["startup"],
            "without_writes": memory_only.median,
            "with_writes": with_disk.median,
        }
        return print_json(
            {"seconds": seconds, "cached_tokens": after["hits"], "stored_bytes": before["bytes"]}
        )


def write_config(folder: Path) -> Path:
    """Writes the config.json of 4-bit Qwen3-0.6B."""
    folder.mkdir(parents=True)
    config = shape_config("qwen3-0.6b") | {"quantization": {"group_size": 128, "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run_process(flags: Sequence[str]) -> dict[str, Any]:
    """Runs a phase in a new process and returns its result."""
    command = [sys.executable, "-m", "benchmark.disk_cache", *flags]
    phase = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if phase.returncode:
        raise WorkerError("a phase failed; its error is above.")
    result: dict[str, Any] = json.loads(phase.stdout.splitlines()[-1])
    return result


def build(model: str, directory: Path | None, num_tokens: int) -> LLM:
    """Engine with random weights and a KV cache for `num_tokens` tokens."""
    return LLM(
        model,
        load_format="dummy",
        kv_cache_bytes=(num_tokens + 256) * 2**17,
        prefix_cache_dir=directory,
        max_num_seqs=4,
    )


def first_token(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """Returns the time to the first token in seconds, and the token."""
    started = time.perf_counter()
    [output] = llm.generate([prompt], ONE_TOKEN)
    return time.perf_counter() - started, output.token_ids[0]


def run_phase(model: str, directory: Path, num_tokens: int) -> dict[str, Any]:
    """Runs the same prompt twice in one engine; returns times and statistics."""
    started = time.perf_counter()
    llm = build(model, directory, num_tokens)
    startup = time.perf_counter() - started
    prompt = [(7 * i) % 1000 + i // 1000 for i in range(num_tokens)]
    first_token(llm, [5] * 40)  # warm-up
    (cold, first), (warm, second) = first_token(llm, prompt), first_token(llm, prompt)
    cache = llm.disk_cache
    assert cache is not None
    llm.close()
    return {
        "seconds": [cold, warm],
        "tokens": [first, second],
        "hits": cache.stats.hit_tokens,
        "bytes": cache.stats.num_bytes,
        "startup": startup,
    }


def alternate(model: str, directory: Path, rounds: int) -> dict[str, Any]:
    """TTFT of 512-token prompts in seconds, alternating disk writes off and on."""
    engines = [build(model, None, 1024), build(model, directory, 1024)]
    seconds: list[list[float]] = [[], []]
    for round_number in range(-1, rounds):
        for number, llm in enumerate(engines):
            prompt = [(round_number + 2) * 31 + i % 800 for i in range(512)]
            ttft, _ = first_token(llm, prompt)
            if round_number >= 0:  # round −1 is the warm-up
                seconds[number].append(ttft)
    return {"seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
