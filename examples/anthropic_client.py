"""Use the official Anthropic client with a tiny-llm server.

Usage:
    pip install 'tiny-llm[serve]' anthropic
    tiny-llm serve                      # in another terminal
    python examples/anthropic_client.py
"""

import argparse

from anthropic import Anthropic

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GET_WEATHER = {"name": "get_weather", "description": "Get the weather.", "input_schema": SCHEMA}


def main() -> None:
    """Sends a plain, a streamed and a tool-use request, and a token count request."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument("--model", default="demo", help="name of the served model")
    args = parser.parse_args()

    # The server accepts any key unless it was started with --api-key.
    client = Anthropic(base_url=args.url, api_key="none")
    common = {"model": args.model, "max_tokens": 100}
    messages = [{"role": "user", "content": "What is the capital of France?"}]

    message = client.messages.create(messages=messages, **common)
    print(f"message: {message.content[0].text}  [{message.stop_reason}]")

    print("stream:  ", end="")
    with client.messages.stream(messages=messages, **common) as stream:
        for text in stream.text_stream:
            print(text, end="", flush=True)
    print()

    question = [{"role": "user", "content": "What is the weather in Oslo?"}]
    message = client.messages.create(messages=question, tools=[GET_WEATHER], **common)
    print(f"tool:    {[(block.name, block.input) for block in message.content]}")

    count = client.messages.count_tokens(model=args.model, messages=messages)
    print(f"count:   {count.input_tokens} tokens")


if __name__ == "__main__":
    main()
