"""Print output as it is generated.

Usage:
    python examples/stream.py
    python examples/stream.py --prompt "What is a page table?" --seed 7
"""

import argparse

from tiny_llm import LLM, SamplingParams


def main() -> None:
    """Streams one completion to standard output, then prints statistics."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="short name, hub id or folder")
    parser.add_argument("--prompt", default="What is the KV cache?")
    parser.add_argument("--seed", type=int, default=1, help="random seed for sampling")
    args = parser.parse_args()

    llm = LLM(args.model)
    messages = [{"role": "user", "content": args.prompt}]
    params = SamplingParams(temperature=0.7, top_p=0.9, seed=args.seed, max_tokens=200)

    for chunk in llm.stream(messages, params):
        print(chunk.text, end="", flush=True)

    request = chunk.request_output  # shared by all chunks; complete after the last chunk
    print(f"\n\n{len(request.prompt_token_ids)} prompt tokens, {len(request.token_ids)} generated")
    print(f"time to first token: {request.metrics.ttft:.3f} s")


if __name__ == "__main__":
    main()
