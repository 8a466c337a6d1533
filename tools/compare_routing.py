"""`pdm run compare-routing`: prefix cache hits of two replicas, by router.

System messages begin with the same instruction, followed by notes that differ by conversation. In
each round, the conversations run in random order, three at a time. The KV cache of a replica has
space for about two thirds of the conversations.
"""

import argparse
import asyncio
import os
import random
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import httpx2
from starlette.types import Message

from tiny_llm.demo import TARGET_PATH
from tiny_llm.engine.engine_args import EngineArgs
from tiny_llm.errors import TaskNotImplemented
from tiny_llm.server.replicas.gateway import Gateway, Replica, ReplicaRequest, RoutedReplicaPool
from tiny_llm.server.replicas.routing import (
    CHUNK_LENGTH,
    PrefixAwareRouter,
    RoundRobinRouter,
    Router,
)
from tiny_llm.server.settings import Settings

from .course.solution_flag import parse_with_tree, restart_in_tree

CONCURRENT = 3
CACHE_TOKENS = 1600  # tokens of KV cache per replica
PAGE_SIZE = 16  # tokens
# Layers, keys and values, KV heads, head dimension, bytes per bfloat16.
BYTES_PER_TOKEN = 8 * 2 * 2 * 128 * 2
# Text chunks in the router's index: as many as fit a replica's KV cache, at 4 characters per token.
MAX_CHUNKS = CACHE_TOKENS * 4 // CHUNK_LENGTH
ENGINE = EngineArgs(
    str(TARGET_PATH),
    kv_cache_bytes=CACHE_TOKENS * BYTES_PER_TOKEN,
    block_size=PAGE_SIZE,
    max_num_seqs=4,
)

SYSTEM = "You are a librarian. Answer in one sentence, and only from the notes."
QUESTIONS = ("Who wrote it?", "When did it appear?", "What is it about?", "Is there a sequel?")
ANSWER_TOKENS = 12

Messages = list[dict[str, str]]


@dataclass
class CountingReplica:
    """A replica that counts its requests."""

    replica: Replica
    num_requests: int = 0

    async def handle_request(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        """See `Replica.handle_request`."""
        self.num_requests += 1
        async for messages in self.replica.handle_request(request):
            yield messages


def notes(number: int) -> str:
    """Notes in the system message of conversation `number`, about 150 tokens."""
    chapters = (
        f"In chapter {7 * number + chapter} the captain of ship {number} meets guest {chapter}."
        for chapter in range(8)
    )
    return f"Notes on book {number}: {' '.join(chapters)}"


async def turn(client: httpx2.AsyncClient, messages: Messages, question: str) -> tuple[int, int]:
    """Asks a question and appends the answer; returns the numbers of prompt and cached tokens."""
    messages.append({"role": "user", "content": question})
    body = {"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0}
    response = (await client.post("/v1/chat/completions", json=body)).json()
    messages.append({"role": "assistant", "content": response["choices"][0]["message"]["content"]})
    usage = response["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


async def measure(router: Router, num_conversations: int, num_turns: int) -> str:
    """Runs the conversations on two new replicas; returns a row of the table."""
    settings = Settings(allowed_hosts=("*",), prefix_warmup=False)
    replicas = [CountingReplica(Replica(ENGINE, settings)) for _ in range(2)]
    for one in replicas:
        await one.replica.start()
    system = [f"{SYSTEM} {notes(number)}" for number in range(num_conversations)]
    conversations: list[Messages] = [[{"role": "system", "content": text}] for text in system]
    order, prompt, cached = random.Random(0), 0, 0
    transport = httpx2.ASGITransport(Gateway(RoutedReplicaPool(replicas, router)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://gateway") as client:
        for question in QUESTIONS[:num_turns]:
            order.shuffle(conversations)
            for start in range(0, num_conversations, CONCURRENT):
                concurrent = conversations[start : start + CONCURRENT]
                for usage in await asyncio.gather(
                    *(turn(client, one, question) for one in concurrent)
                ):
                    prompt, cached = prompt + usage[0], cached + usage[1]
    requests = " + ".join(str(one.num_requests) for one in replicas)
    return f"{requests:>9} {prompt:14} {prompt - cached:9} {cached / prompt:9.0%}"


def main() -> None:
    """Prints the table; ends with `os._exit`, because engine threads are still running."""
    parser = argparse.ArgumentParser(
        prog="compare-routing", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=11, metavar="N")
    parser.add_argument("--turns", type=int, choices=range(1, 5), default=4, metavar="N")
    args, tree = parse_with_tree(parser)
    restart_in_tree(tree, "tools.compare_routing")
    routers: dict[str, Router] = {
        "round robin": RoundRobinRouter(),
        "longest match": PrefixAwareRouter(MAX_CHUNKS, max_imbalance=CONCURRENT, min_match=0),
        "prefix-aware": PrefixAwareRouter(MAX_CHUNKS),
    }
    print("router          requests  prompt tokens  computed  hit rate")
    status = 0
    try:
        for name, router in routers.items():
            row = asyncio.run(measure(router, args.conversations, args.turns))
            print(f"{name:14} {row}", flush=True)
    except TaskNotImplemented as error:
        print(error, file=sys.stderr, flush=True)
        status = 2
    os._exit(status)


if __name__ == "__main__":
    main()
