"""Whether the server can answer: loading, ready, draining, or broken, and why."""

from enum import StrEnum


class Phase(StrEnum):
    """loading → ready → draining; broken from any of them, and for ever."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    BROKEN = "broken"


PHASE_MESSAGES = {
    Phase.LOADING: "The model is being loaded; try again in a moment.",
    Phase.READY: "The server is ready.",
    Phase.DRAINING: "The server is shutting down and takes no new requests.",
}


class Lifecycle:
    """The phase of the server, and the sentence that `/ready` gives for it."""

    def __init__(self) -> None:
        self.phase = Phase.LOADING
        self.reason = PHASE_MESSAGES[Phase.LOADING]

    @property
    def is_ready(self) -> bool:
        """Whether new requests are taken."""
        return self.phase is Phase.READY

    def transition(self, phase: Phase, reason: str | None = None) -> None:
        """Goes on to a phase; what is broken stays broken, and what drains does not get ready."""
        if self.phase is Phase.BROKEN or (self.phase is Phase.DRAINING and phase is Phase.READY):
            return
        self.phase = phase
        self.reason = reason or PHASE_MESSAGES[phase]
