"""Pieces that come quickly are read together; the first, an end and an error at once."""

import asyncio

from tests.server.test_slow_readers import piece
from tiny_llm.server.errors import ApiError
from tiny_llm.server.mailbox import Mailbox
from tiny_llm.server.pacer import Pacer

LONG = 1000.0  # seconds that no test waits for


class Reader:
    """Reads a mailbox whose clock a test sets, and notes what came together."""

    def __init__(self, pacer):
        self.now = 0.0
        self.box = Mailbox(limit=10, patience=10, pacer=pacer, clock=lambda: self.now)
        self.seen = []
        self.task = asyncio.ensure_future(self._read())

    async def _read(self):
        while True:
            items = await self.box.get()
            self.seen.append([getattr(item, "text", "error") for item in items])

    async def put(self, *items):
        for item in items:
            self.box.put(item)
        for _ in range(4):  # the reader's turn
            await asyncio.sleep(0)


async def reader_of(pacer):
    reader = Reader(pacer)
    reader.now = LONG
    await reader.put(piece("first"))
    return reader


def last(text):
    one = piece(text)
    return type(one)(**{**vars(one), "finish_reason": "stop"})


def test_the_first_piece_is_read_at_once_and_quick_ones_wait():
    async def run():
        reader = await reader_of(Pacer(LONG))
        await reader.put(piece("a"))
        await reader.put(piece("b"), piece("c"))
        assert reader.seen == [["first"]]
        reader.task.cancel()

    asyncio.run(run())


def test_an_end_and_an_error_bring_what_waits_at_once_and_in_order():
    async def run():
        for end, text in ((last("end"), "end"), (ApiError(500, "It failed."), "error")):
            reader = await reader_of(Pacer(LONG))
            await reader.put(piece("a"))
            await reader.put(piece("b"))
            await reader.put(end)
            assert reader.seen == [["first"], ["a", "b", text]]
            reader.task.cancel()

    asyncio.run(run())


def test_a_piece_after_a_pause_is_read_at_once():
    async def run():
        reader = await reader_of(Pacer(LONG))
        reader.now += LONG
        await reader.put(piece("a"))
        assert reader.seen == [["first"], ["a"]]
        await reader.put(piece("b"))
        assert reader.seen == [["first"], ["a"]]
        reader.task.cancel()

    asyncio.run(run())


def test_without_a_pace_every_piece_is_read_at_once():
    async def run():
        reader = await reader_of(Pacer(0))
        await reader.put(piece("a"))
        await reader.put(piece("b"))
        assert reader.seen == [["first"], ["a"], ["b"]]
        reader.task.cancel()

    asyncio.run(run())


def test_one_timer_wakes_all_readers_in_order():
    async def run():
        pacer = Pacer(0.001)
        loop, timers = asyncio.get_running_loop(), []
        call_later = loop.call_later
        loop.call_later = lambda *args: (timers.append(args), call_later(*args))[1]
        readers = [await reader_of(pacer) for _ in range(3)]
        for text in "ab":
            for reader in readers:
                await reader.put(piece(text))
        assert [reader.seen for reader in readers] == [[["first"]]] * 3
        assert len(timers) == 1
        while any(len(reader.seen) < 2 for reader in readers):
            await asyncio.sleep(0.001)
        assert [reader.seen for reader in readers] == [[["first"], ["a", "b"]]] * 3
        for reader in readers:
            await reader.put(piece("c"))  # the clock has not moved: it waits for a new timer
        while any(len(reader.seen) < 3 for reader in readers):
            await asyncio.sleep(0.001)
        assert [reader.seen[2] for reader in readers] == [["c"]] * 3
        for reader in readers:
            reader.task.cancel()

    asyncio.run(run())
