"""Lifecycle of a model: unloaded, loading, ready, draining, failed."""

from enum import StrEnum


class Phase(StrEnum):
    """Phase of a model.

    Transitions: loading → ready or unloaded, ready → unloaded, unloaded → loading, any → draining,
    and any → failed, which is final.
    """

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


PHASE_MESSAGES = {
    Phase.UNLOADED: "The model is not loaded; the first request loads it.",
    Phase.LOADING: "The model is loading; retry in a moment.",
    Phase.READY: "The server is ready.",
    Phase.DRAINING: "The server is shutting down and accepts no new requests.",
}


class Lifecycle:
    """A model's phase, with the reason that `/ready` reports."""

    def __init__(self, phase: Phase = Phase.LOADING) -> None:
        self.phase = phase
        self.reason = PHASE_MESSAGES[phase]

    def transition(self, phase: Phase, reason: str | None = None) -> None:
        """Changes the phase; FAILED is final, DRAINING can change only to FAILED."""
        is_final = self.phase is Phase.DRAINING and phase is not Phase.FAILED
        if self.phase is Phase.FAILED or is_final:
            return
        self.phase = phase
        self.reason = reason or PHASE_MESSAGES[phase]
