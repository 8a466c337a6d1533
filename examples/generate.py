"""Generate completions for several prompts in one batch.

Usage:
    python examples/generate.py
    python examples/generate.py --model qwen3-0.6b
"""

import argparse

from tiny_llm import LLM, SamplingParams

QUESTIONS = ("What is RoPE?", "What is 17 + 25?", "What is the capital of Japan?")


def main() -> None:
    """Prints each completion with its finish reason and token count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="short name, hub id or folder")
    args = parser.parse_args()

    llm = LLM(args.model)
    # A prompt is a string, a list of token ids, or a list of chat messages.
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    params = SamplingParams(temperature=0, max_tokens=100)

    for question, output in zip(QUESTIONS, llm.generate(chats, params), strict=True):
        print(f"Q: {question}")
        print(f"A: {output.text}  [{output.finish_reason}, {len(output.token_ids)} tokens]")


if __name__ == "__main__":
    main()
