"""Speculative decoding: the same tokens in fewer steps.

Usage:
    python examples/speculative_decoding.py
    python examples/speculative_decoding.py --model qwen3-4b --draft-model qwen3-0.6b
"""

import argparse
from typing import Any

from tiny_llm import LLM, SamplingParams

PROMPT = """The mayor of Lenmora is Mira Holton, who was a teacher before.

Who is the mayor of Lenmora?"""


def generate(label: str, model: str, **speculation: Any) -> list[int]:
    """Prints the number of decoding steps; returns the generated tokens."""
    llm = LLM(model, **speculation)
    messages = [{"role": "user", "content": PROMPT}]
    params = SamplingParams(temperature=0, max_tokens=100)
    chunks = [chunk for chunk in llm.stream(messages, params) if chunk.token_ids]
    request = chunks[-1].request_output
    print(f"{label:<12} {len(request.token_ids)} tokens in {len(chunks)} steps: {request.text}")
    return request.token_ids


def main() -> None:
    """Compares plain decoding, a draft model and n-gram speculation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="short name, hub id or folder")
    parser.add_argument(
        "--draft-model", default="demo-draft", help="model with the same vocabulary"
    )
    args = parser.parse_args()

    plain = generate("none:", args.model)
    draft = generate("draft model:", args.model, draft_model=args.draft_model, num_drafts=4)
    ngram = generate("n-gram:", args.model, speculative="ngram")
    print(f"same tokens: {plain == draft == ngram}")


if __name__ == "__main__":
    main()
