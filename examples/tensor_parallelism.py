"""Tensor parallelism: shard the weights and KV cache across processes.

Usage:
    python examples/tensor_parallelism.py --size 2
"""

import argparse

from tiny_llm import LLM, SamplingParams

QUESTIONS = ("What is the capital of Japan?", "What is 17 + 25?")


def main() -> None:
    """Generates two completions on `--size` ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="short name, hub id or folder")
    parser.add_argument("--size", type=int, default=2, help="number of ranks")
    args = parser.parse_args()

    # This process is rank 0 and spawns the other ranks, which exit with it.
    llm = LLM(args.model, tensor_parallel_size=args.size)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]

    for output in llm.generate(chats, SamplingParams(temperature=0, max_tokens=100)):
        print(output.text)


if __name__ == "__main__":
    main()
