"""The event loop's side of the engine: admission, answers to their clients, and leaving.

A client's request is a `Generation`: one or several prompts, each with one or several answers. All
methods run on the event loop.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from ..engine.sampling_params import SamplingParams
from .engine_thread import Inbox
from .errors import ApiError, refused
from .lifecycle import Lifecycle, Phase
from .mailbox import Mailbox
from .metrics import Metrics
from .pacer import Wake
from .seam import (
    Accepted,
    Cancel,
    Died,
    FromEngine,
    Gauges,
    Loaded,
    Look,
    Piece,
    Precompute,
    Refused,
    StepReport,
    Submit,
    Watch,
)
from .settings import Settings

FAILED = "The engine failed while it computed this answer; the server's log says why."


class Generation:
    """A client's request in the engine. It is ended by `close`, whatever happened before.

    Attributes:
        prompt_tokens: of all prompts together.
        cached_tokens: how many of them were found in the prefix cache.
        on_overdue: is called when the client reads too slowly, if somebody wants to know.
    """

    def __init__(
        self, bridge: "Bridge", request_ids: Sequence[str], prompts: Sequence[int], n: int
    ):
        self.request_ids = list(request_ids)
        self.prompt_tokens = sum(prompts)
        self.on_overdue: Callable[[], None] | None = None
        settings = bridge.settings
        self._num_answers = len(self.request_ids) * n
        limit = settings.buffer_pieces * self._num_answers
        self.mailbox = Mailbox(limit, settings.slow_reader_seconds, bridge.wake_later)
        self._cached = dict.fromkeys(self.request_ids, 0)
        self._bridge = bridge
        self._unanswered = set(self.request_ids)  # prompts that the engine has not accepted yet
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timer: asyncio.TimerHandle | None = None
        if settings.request_timeout is not None:
            self._timer = asyncio.get_running_loop().call_later(
                settings.request_timeout, self._expire, settings.request_timeout
            )

    @property
    def cached_tokens(self) -> int:
        """See the class."""
        return sum(self._cached.values())

    async def accepted(self) -> None:
        """Waits until the engine has every prompt in its queue.

        Raises:
            ApiError: it refuses one.
        """
        await self._accepted

    async def news(self) -> AsyncIterator[list[tuple[int, Piece]]]:
        """What steps add to the answers, until all have ended: what has come since the last time.

        Each piece comes with the number of its prompt.

        Raises:
            ApiError: an answer cannot be finished; all that came before has been yielded.
        """
        numbers = {request_id: number for number, request_id in enumerate(self.request_ids)}
        remaining = self._num_answers
        while remaining:
            pieces: list[tuple[int, Piece]] = []
            error = None
            for item in await self.mailbox.get():
                if isinstance(item, ApiError):
                    error = item
                    break
                self._cached[item.request_id] = item.cached_tokens
                if item.finish_reason == "error":
                    error = ApiError(500, FAILED)
                    break
                remaining -= item.finish_reason is not None
                pieces.append((numbers[item.request_id], item))
            if pieces:
                yield pieces
            if error is not None:
                raise error

    def close(self) -> None:
        """Ends it: what the engine still computes for it is cancelled."""
        if self._timer is not None:
            self._timer.cancel()
        self._bridge.forget(self)

    def take(self, item: Accepted | Refused | Piece) -> None:
        """Takes news from the engine."""
        match item:
            case Accepted(request_id):
                self._unanswered.discard(request_id)
                if not self._unanswered and not self._accepted.done():
                    self._accepted.set_result(None)
            case Refused(_, reason):
                self.fail(refused(reason))
            case Piece():
                self.mailbox.put(item)
                if self.on_overdue is not None and self.mailbox.overdue:
                    self.on_overdue()

    def fail(self, error: ApiError) -> None:
        """Ends it with an error, before its answers began or after."""
        if not self._accepted.done():
            self._accepted.set_exception(error)
            self._accepted.exception()  # it may never be asked for
        self.mailbox.put(error)

    def _expire(self, seconds: float) -> None:
        self.fail(
            ApiError(504, f"The answer was not finished within {seconds:g} s.", code="timeout")
        )


class Bridge:
    """Sends requests to the engine's thread, and its news to the clients.

    Args:
        settings: limits.
        inbox: of the engine's thread.
        lifecycle: whether requests are taken.
        metrics: what is counted.
        wake_later: of the pacer: calls a function when it is time to read what is not urgent.

    Attributes:
        settings, lifecycle, metrics, wake_later: as given.
        loaded: what the engine said when it was ready; None before.
        gauges: the engine's state after its last step.
        snapshot: the last one of `engine/snapshot.py` that somebody looked at; None before.
        open: requests whose clients have not got everything.
        ending: is set when the process ends, and viewers must go.
    """

    def __init__(
        self,
        settings: Settings,
        inbox: Inbox,
        lifecycle: Lifecycle,
        metrics: Metrics,
        wake_later: Callable[[Wake], None],
    ):
        self.settings = settings
        self.wake_later = wake_later
        self.lifecycle = lifecycle
        self.metrics = metrics
        self.inbox = inbox
        self.loaded: Loaded | None = None
        self.gauges = Gauges()
        self.snapshot: Mapping[str, Any] | None = None
        self.open: set[Generation] = set()
        self.ending = asyncio.Event()
        self._of: dict[str, Generation | None] = {}  # None: its client has gone
        self._unfinished: dict[str, int] = {}  # answers that the engine has not ended
        self._numbers = itertools.count()
        self._watchers: list[Callable[[StepReport], None]] = []
        self._looking: list[asyncio.Future[None]] = []

    # ---------------------------------------------------------------- from clients

    def submit(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, may_think: bool
    ) -> Generation:
        """Asks the engine to answer prompts; see `Submit`.

        Raises:
            ApiError: 503 if the server is not ready, 429 if the queue is full, 400 if a prompt
                leaves no room in the context, or the request alone is more than the queue holds.
        """
        self.check_ready()
        assert self.loaded is not None
        for prompt in prompts:
            self._check_prompt(len(prompt), self.loaded.max_seq_len)
        answers = len(prompts) * params.n
        room = self.loaded.max_num_seqs + self.settings.max_queue
        if answers > room:
            raise refused(
                f"The request asks for {answers} answers; this server takes at most {room} at a "
                "time.",
                "n",
            )
        if self.num_unfinished + answers > room:
            raise ApiError(
                429,
                f"The queue is full: {self.num_unfinished} answers are running or waiting, and "
                f"the server takes {room}; try again in a moment.",
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        ids = [f"{next(self._numbers)}" for _ in prompts]
        generation = Generation(self, ids, [len(prompt) for prompt in prompts], params.n)
        self.open.add(generation)
        for request_id, prompt in zip(ids, prompts, strict=True):
            self._of[request_id] = generation
            self._unfinished[request_id] = params.n
            self.inbox.put(Submit(request_id, tuple(prompt), params, may_think))
        return generation

    def check_ready(self) -> None:
        """Refuses requests that come too early or too late.

        Raises:
            ApiError: 503, with the reason.
        """
        if not self.lifecycle.is_ready:
            raise ApiError(503, self.lifecycle.reason, headers={"Retry-After": "1"})

    def forget(self, generation: Generation) -> None:
        """A client needs nothing more: what is not finished is cancelled."""
        self.open.discard(generation)
        for request_id in generation.request_ids:
            if request_id in self._of:
                self._of[request_id] = None
                self.inbox.put(Cancel(request_id))

    def precompute(self, token_ids: Sequence[int]) -> None:
        """Has the engine compute the beginning of a prompt while there is nothing else to do."""
        self.inbox.put(Precompute(tuple(token_ids)))

    # ---------------------------------------------------------------- from viewers

    def watch(self, take: Callable[[StepReport], None]) -> None:
        """Calls a function with every report from now on; they contain what the engine does."""
        self._watchers.append(take)
        self.inbox.put(Watch(True))

    def unwatch(self, take: Callable[[StepReport], None]) -> None:
        """Ends it."""
        self._watchers.remove(take)
        if not self._watchers:
            self.inbox.put(Watch(False))

    async def look(self, seconds: float) -> None:
        """Renews `snapshot`, unless the engine is in a step that takes longer than `seconds`."""
        if self.loaded is None or self.lifecycle.phase is Phase.BROKEN:
            return
        seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._looking.append(seen)
        self.inbox.put(Look())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(seen, seconds)

    # ---------------------------------------------------------------- how much there is to do

    @property
    def num_unfinished(self) -> int:
        """Answers that the engine has not ended."""
        return sum(self._unfinished.values())

    @property
    def is_idle(self) -> bool:
        """Whether every request has ended, for the engine and for its client."""
        return not self.open and not self._unfinished

    # ---------------------------------------------------------------- from the engine

    def deliver(self, message: FromEngine) -> None:
        """Takes a message of the engine's thread."""
        match message:
            case Loaded():
                self.loaded = message
                self.lifecycle.enter(Phase.READY)
            case StepReport():
                self.gauges = message.gauges
                for item in message.news:
                    self._hand_on(item)
                if message.snapshot is not None:
                    self._take_snapshot(message.snapshot)
                for take in list(self._watchers):
                    take(message)
            case Died(reason):
                self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """The engine computes nothing any more: every request ends with an error."""
        self.lifecycle.enter(Phase.BROKEN, reason)
        self._of.clear()
        self._unfinished.clear()
        for generation in list(self.open):
            generation.fail(ApiError(500, FAILED))

    def end_all(self, error: ApiError) -> None:
        """Ends every request that is open with an error, and cancels it."""
        for generation in list(self.open):
            generation.fail(error)

    def _take_snapshot(self, snapshot: Mapping[str, Any]) -> None:
        self.snapshot = snapshot
        looking, self._looking = self._looking, []
        for seen in looking:
            if not seen.done():
                seen.set_result(None)

    def _hand_on(self, item: Accepted | Refused | Piece) -> None:
        request_id = item.request_id
        if request_id not in self._of:  # after `give_up`
            return
        generation = self._of[request_id]
        if isinstance(item, Piece):
            self.metrics.count(item)
            if item.finish_reason is not None:
                self._unfinished[request_id] -= 1
        elif isinstance(item, Refused):
            self._unfinished[request_id] = 0
        if not self._unfinished[request_id]:
            del self._of[request_id], self._unfinished[request_id]
        if generation is not None:
            generation.take(item)

    @staticmethod
    def _check_prompt(tokens: int, context: int) -> None:
        if tokens == 0:
            raise refused("The prompt is empty; give at least one token.")
        if tokens >= context:
            raise ApiError(
                400,
                # In the words by which clients of both protocols know that they must shorten it.
                f"The prompt is too long: {tokens} tokens > {context - 1} maximum; this model's "
                f"maximum context length is {context} tokens, with at least one for the answer.",
                code="context_length_exceeded",
                numbers={"n_prompt_tokens": tokens, "n_ctx": context},  # llama.cpp's names
            )
