"""Use the official OpenAI client with a tiny-llm server.

Usage:
    pip install 'tiny-llm[serve]' openai
    tiny-llm serve                      # in another terminal
    python examples/openai_client.py
"""

import argparse

from openai import OpenAI
from pydantic import BaseModel


class Capital(BaseModel):
    """Schema of the structured response."""

    city: str
    country: str


def main() -> None:
    """Sends a plain, a streamed and a structured chat completion, then a Responses request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument("--model", default="demo", help="name of the served model")
    args = parser.parse_args()

    # The server accepts any key unless it was started with --api-key.
    client = OpenAI(base_url=f"{args.url}/v1", api_key="none")
    chats, question = client.chat.completions, "What is the capital of France?"

    chat = chats.create(model=args.model, messages=[{"role": "user", "content": question}])
    print(f"chat:     {chat.choices[0].message.content}")

    print("stream:   ", end="")
    messages = [{"role": "user", "content": question}]
    for chunk in chats.create(model=args.model, messages=messages, stream=True):
        print(chunk.choices[0].delta.content or "", end="", flush=True)

    messages = [{"role": "user", "content": "Give me the capital of Japan as JSON."}]
    parsed = chats.parse(model=args.model, messages=messages, response_format=Capital)
    print(f"\nschema:   {parsed.choices[0].message.parsed!r}")

    response = client.responses.create(model=args.model, input="What is 17 + 25?")
    print(f"response: {response.output_text}")


if __name__ == "__main__":
    main()
