"""DraftProposer: interface of model-free draft token proposers."""

from collections.abc import Sequence
from typing import Protocol

from ..scheduling.request import EngineRequest


class DraftProposer(Protocol):
    """Proposes draft tokens without a model."""

    def propose(self, request: EngineRequest, num_running: int) -> Sequence[int]:
        """Returns the likely next tokens of a request; empty without a proposal.

        Args:
            request: a decoding request.
            num_running: number of running requests, which share the step.
        """
