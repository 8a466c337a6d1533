"""DraftProposer: interface of model-free draft token proposers."""

from collections.abc import Sequence
from typing import Protocol

from ..scheduling.request import EngineRequest


class DraftProposer(Protocol):
    """Proposes draft tokens without a model."""

    def propose(self, request: EngineRequest, num_running: int) -> Sequence[int]:
        """Returns a request's likely next tokens; empty if there is no proposal.

        Args:
            request: a decoding request.
            num_running: number of running requests, which share the step.
        """
