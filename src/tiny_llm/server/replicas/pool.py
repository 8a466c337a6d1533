"""Replica pool that uses this package's routers, without Ray."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Protocol

from starlette.types import Message

from .gateway import ReplicaLostError, ReplicaRequest
from .routing import Router


class ReplicaHandle(Protocol):
    """Sends requests to one replica: a `Replica`, or a connection to one."""

    def handle_request(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        """See `ReplicaPool.stream`."""


class RoutedReplicaPool:
    """`ReplicaPool` with a router; counts requests in flight.

    Attributes:
        loads: number of requests in flight, by replica number; without lost replicas.
    """

    def __init__(self, replicas: Sequence[ReplicaHandle], router: Router):
        self._replicas = dict(enumerate(replicas))
        self._router = router
        self._num_added = len(replicas)
        self.loads = dict.fromkeys(self._replicas, 0)

    async def stream(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        if not self.loads:
            raise ReplicaLostError("All replicas are lost.")
        with self._in_flight(request.prompt) as replica:
            async with aclosing(replica.handle_request(request)) as batches:
                async for messages in batches:
                    yield messages

    @contextmanager
    def _in_flight(self, key: str) -> Iterator[ReplicaHandle]:
        """Chooses a replica for a routing key; counts a request in flight on it.

        The request is in flight until the block exits. If the block raises `ReplicaLostError`, the
        replica gets no further requests and the router forgets it.
        """
        # [task 5.7.4 in-flight]
        chosen = self._router.choose(key, self.loads)
        self.loads[chosen] += 1
        try:
            yield self._replicas[chosen]
        except ReplicaLostError:
            self.loads.pop(chosen, None)
            self._replicas.pop(chosen, None)
            self._router.forget(chosen)
            raise
        finally:
            if chosen in self.loads:
                self.loads[chosen] -= 1
        # [/task 5.7.4 in-flight]

    def add(self, replica: ReplicaHandle) -> int:
        """Adds a replica, e.g. to replace a lost one; returns its number."""
        number, self._num_added = self._num_added, self._num_added + 1
        self._replicas[number] = replica
        self.loads[number] = 0
        return number
