"""Chat in the terminal; earlier turns are prefix cache hits.

Usage:
    python examples/chat.py
"""

import argparse
import sys

from tiny_llm import LLM, SamplingParams


def main() -> None:
    """Responds to each line of standard input until an empty line or end of file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="short name, hub id or folder")
    args = parser.parse_args()

    llm = LLM(args.model)
    params = SamplingParams(temperature=0, max_tokens=200)
    messages: list[dict[str, str]] = []

    print("> ", end="", flush=True)
    for line in sys.stdin:
        if not line.strip():
            break
        messages.append({"role": "user", "content": line.strip()})
        for chunk in llm.stream(messages, params):
            print(chunk.text, end="", flush=True)
        request = chunk.request_output
        messages.append({"role": "assistant", "content": request.text})
        # The prefix cache holds the full pages of earlier turns.
        print(f"  [{request.num_cached_tokens} of {len(request.prompt_token_ids)} tokens cached]")
        print("> ", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
