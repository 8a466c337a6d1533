"""Coalescing delays readers, except for first and final outputs and errors."""

import asyncio

from tests.server import conftest  # noqa: F401  (skips where the libraries are missing)
from tiny_llm.engine.scheduling.request import StreamOutput
from tiny_llm.server.engine_client.messages import EngineStats, StepReport
from tiny_llm.server.engine_client.request_stream import Coalescer, RequestStream, coalescing_delay
from tiny_llm.server.http.errors import ApiError

LONG = 1000.0  # seconds; longer than any test waits


def update(request_id, text, finish_reason=None, **fields):
    return StreamOutput(request_id, 0, text, (len(text),), finish_reason, **fields)


class Harness:
    """Coalescer with two request streams, and the batches read from each."""

    def __init__(self, delay):
        self.coalescer = Coalescer(self._distribute, lambda: delay)
        self.coalescer.start()
        wake = self.coalescer.schedule_wake
        self.streams = [RequestStream([name], 1, 10, wake) for name in "01"]
        self.seen = [[], []]
        self._tasks = [asyncio.ensure_future(self._read(number)) for number in range(2)]

    async def _read(self, number):
        while True:
            items = await self.streams[number].get()
            self.seen[number].append([getattr(item, "text", "error") for item in items])

    def _distribute(self, report):
        for item in report.outputs:
            self.streams[int(item.request_id)].put(item)

    async def post(self, *outputs):
        """Posts a step report from another thread, then lets the readers run."""
        await asyncio.to_thread(self.coalescer.post, StepReport(outputs, EngineStats()))
        await asyncio.sleep(0.005)


def with_harness(delay=LONG):
    """Runs an asynchronous test with a harness, after the delivery of first outputs."""

    def decorate(test):
        async def main():
            harness = Harness(delay)
            await harness.post(*(update(name, "first", is_first=True) for name in "01"))
            assert harness.seen == [[["first"]], [["first"]]]
            await test(harness)

        return lambda: asyncio.run(main())

    return decorate


@with_harness()
async def test_outputs_are_delayed_until_a_final_one_flushes_them_in_order(harness):
    await harness.post(update("0", "a"), update("1", "x"))
    await harness.post(update("0", "b"))
    assert harness.seen == [[["first"]], [["first"]]]
    await harness.post(update("0", "end", finish_reason="stop"))
    assert harness.seen == [[["first"], ["a", "b", "end"]], [["first"]]]


@with_harness()
async def test_error_is_delivered_immediately(harness):
    harness.streams[0].put(ApiError(500, "It failed."))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert harness.seen[0] == [["first"], ["error"]]


@with_harness(delay=0.5)
async def test_one_timer_wakes_all_readers(harness):
    loop, timers = asyncio.get_running_loop(), []
    call_later = loop.call_later
    loop.call_later = lambda *args: (timers.append(args), call_later(*args))[1]
    for text in "abc":
        await harness.post(update("0", text), update("1", text))
    assert [timer for timer in timers if timer[0] > 0.05][1:] == []
    while any(len(seen) < 2 for seen in harness.seen):
        await asyncio.sleep(0.001)
    assert harness.seen == [[["first"], ["a", "b", "c"]]] * 2


@with_harness(delay=0.001)
async def test_output_after_a_pause_is_immediate(harness):
    await asyncio.sleep(0.02)  # the timer fires without pending outputs and is not rearmed
    harness.coalescer._delay = lambda: LONG
    for text in "ab":
        await harness.post(update("0", text))
        assert harness.seen[0] == [["first"], ["a"]]


def test_delay_is_two_milliseconds_per_stream_within_bounds():
    times = [round(1000 * coalescing_delay(streams)) for streams in (0, 1, 5, 8, 15, 64, 1000)]
    assert times == [10, 10, 10, 16, 30, 30, 30]
