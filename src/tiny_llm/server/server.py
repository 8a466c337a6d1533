"""What every endpoint needs: the bridge to the engine, the prompts of its model, its defaults."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from ..engine.sampling_params import SamplingParams
from .bridge import Bridge, Generation
from .errors import ApiError
from .next_turn import NextTurns
from .prompts import Prompts
from .settings import Settings


@dataclass
class Server:
    """The server, as its endpoints see it.

    Attributes:
        settings: see there.
        bridge: to the engine.
        defaults: of sampling.
        created: when the server began, in seconds since 1970.
        loaded_prompts: None while the model is being loaded.
        next_turns: expects what conversations will go on with.
    """

    settings: Settings
    bridge: Bridge
    defaults: Mapping[str, Any]
    created: int = field(default_factory=lambda: int(time.time()))
    loaded_prompts: Prompts | None = None
    next_turns: NextTurns = field(init=False)

    def __post_init__(self) -> None:
        self.next_turns = NextTurns(self.settings, self.bridge)

    @property
    def prompts(self) -> Prompts:
        """Makes prompts.

        Raises:
            ApiError: 503 while the model is being loaded, or if the server takes no requests.
        """
        self.bridge.check_ready()
        assert self.loaded_prompts is not None
        return self.loaded_prompts

    @property
    def context(self) -> int:
        """Tokens that a request may have, prompt and answer."""
        assert self.bridge.loaded is not None
        return self.bridge.loaded.max_seq_len

    async def begin(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, may_think: bool = False
    ) -> Generation:
        """Puts prompts into the engine's queue.

        Raises:
            ApiError: the bridge or the engine refuses them; nothing is computed then.
        """
        generation = self.bridge.submit(prompts, params, may_think)
        try:
            await generation.accepted()
        except BaseException:
            generation.close()
            raise
        return generation

    def check_model(self, name: str | None) -> None:
        """Refuses a model that is not served; no name means the one that is.

        Raises:
            ApiError: 404.
        """
        if name is not None and name != self.settings.model_name:
            raise ApiError(
                404,
                f"The model '{name[:100]}' does not exist here; this server has "
                f"'{self.settings.model_name}'.",
                "model",
                "model_not_found",
            )


def server_of(request: Request) -> Server:
    """The server that got a request."""
    found: Server = request.app.state.server
    return found
