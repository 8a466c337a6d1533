"""Server phase: loading, ready, draining, broken."""

from enum import StrEnum


class Phase(StrEnum):
    """loading → ready → draining; any → broken, which is final."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    BROKEN = "broken"


PHASE_MESSAGES = {
    Phase.LOADING: "The model is loading; retry in a moment.",
    Phase.READY: "The server is ready.",
    Phase.DRAINING: "The server is shutting down and accepts no new requests.",
}


class Lifecycle:
    """The server's phase, with the reason that `/ready` reports."""

    def __init__(self) -> None:
        self.phase = Phase.LOADING
        self.reason = PHASE_MESSAGES[Phase.LOADING]

    @property
    def is_ready(self) -> bool:
        """Whether new requests are accepted."""
        return self.phase is Phase.READY

    def transition(self, phase: Phase, reason: str | None = None) -> None:
        """Changes the phase; a no-op from broken, and from draining to ready."""
        if self.phase is Phase.BROKEN or (self.phase is Phase.DRAINING and phase is Phase.READY):
            return
        self.phase = phase
        self.reason = reason or PHASE_MESSAGES[phase]
