"""`GET /engine/state` and `/engine/events`: the engine from inside, for the live view."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from .bridge import Bridge
from .errors import to_json
from .replies import COMMENT, Events, event
from .seam import StepReport
from .server import server_of

LIMIT = 1000  # reports that wait for a slow viewer; it misses those beyond
PATIENCE = 0.5  # seconds that a look waits for a step to end

router = APIRouter()


@router.get("/engine/state", tags=["engine"])
async def state(request: Request) -> dict[str, Any]:
    """Slots, queue and pages after the last step: in numbers, and who has which (`snapshot`)."""
    bridge = server_of(request).bridge
    await bridge.look(PATIENCE)
    return {**state_of(bridge), "snapshot": bridge.snapshot}


@router.get("/engine/events", tags=["engine"], include_in_schema=False)
async def events(request: Request) -> Response:
    """What happens, as it happens: the state first, then the events of each step."""
    server = server_of(request)
    viewer = Viewer(server.bridge)
    return StreamingResponse(
        viewer.events(server.settings.keep_alive),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
    )


def state_of(bridge: Bridge) -> dict[str, Any]:
    """The engine's state as JSON has it."""
    gauges = bridge.gauges
    return {
        "phase": bridge.lifecycle.phase.value,
        "config": None if bridge.loaded is None else dict(bridge.loaded.config),
        "unfinished": bridge.num_unfinished,
        "clients": len(bridge.open),
        **{name: getattr(gauges, name) for name in gauges.__dataclass_fields__},
    }


def all_events(report: StepReport) -> Iterator[Mapping[str, Any]]:
    """What happened in a step, and what is now."""
    yield from report.events
    if report.snapshot is not None:
        yield report.snapshot


class Viewer:
    """Someone who watches the engine; while there is one, the engine reports its events."""

    def __init__(self, bridge: Bridge):
        self._bridge = bridge
        self._reports: asyncio.Queue[StepReport] = asyncio.Queue(LIMIT)

    async def events(self, keep_alive: float) -> Events:
        """The stream."""
        bridge = self._bridge
        bridge.watch(self._take)
        try:
            yield event(state_of(bridge), "state")
            while not bridge.ending.is_set():
                report = await self._next(keep_alive)
                if report is None:
                    yield COMMENT
                    continue
                data = b"".join(b"data: " + to_json(one) + b"\n\n" for one in all_events(report))
                yield data + event(state_of(bridge), "state")
        finally:
            bridge.unwatch(self._take)

    async def _next(self, seconds: float) -> StepReport | None:
        """The next report; None if there is none in that time, or the server ends."""
        getting = asyncio.ensure_future(self._reports.get())
        ending = asyncio.ensure_future(self._bridge.ending.wait())
        try:
            await asyncio.wait((getting, ending), timeout=seconds, return_when="FIRST_COMPLETED")
            return getting.result() if getting.done() else None
        finally:
            getting.cancel()
            ending.cancel()

    def _take(self, report: StepReport) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._reports.put_nowait(report)
