"""The HTTP server: OpenAI's and Anthropic's protocols in front of the engine.

One process. The event loop is in the main thread; one other thread loads the model and steps it. A
request's path, with the file for each stage:

    guards          the key, the size of the body
    chat, completions, messages, responses
                    a protocol's request checked, as prompts and sampling parameters
    prompts         a conversation through the chat template, text into tokens (worker threads)
    bridge          admission, and the mailbox in which the client's answers arrive
    seam            what the two sides say to each other: plain data, nothing else
    engine_thread   the inbox, a step of the engine, its outputs back to the event loop
    answer_parser   text as it comes, split into thinking, answer and tool calls
    replies         events to the client; if it leaves, `bridge` cancels its request

This folder must not know how tokens are computed: it uses `engine/` through `LLM` alone.
"""
