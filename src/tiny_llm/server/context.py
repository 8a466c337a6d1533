"""What every endpoint needs: the bridge to the engine, the prompts of its model, its defaults."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from ..engine.inputs.sampling_params import SamplingParams
from .engine_client.client import EngineClient, RequestHandle
from .http.errors import ApiError
from .protocol.prefix_warmup import PrefixWarmup
from .protocol.prompts import PromptRenderer
from .settings import Settings


@dataclass
class AppState:
    """The server, as its endpoints see it.

    Attributes:
        settings: see there.
        engine_client: to the engine.
        defaults: of sampling.
        created: when the server began, in seconds since 1970.
        loaded_renderer: None while the model is being loaded.
        prefix_warmup: expects what conversations will go on with.
    """

    settings: Settings
    engine_client: EngineClient
    defaults: Mapping[str, Any]
    created: int = field(default_factory=lambda: int(time.time()))
    loaded_renderer: PromptRenderer | None = None
    prefix_warmup: PrefixWarmup = field(init=False)

    def __post_init__(self) -> None:
        self.prefix_warmup = PrefixWarmup(self.settings, self.engine_client)

    @property
    def prompts(self) -> PromptRenderer:
        """Makes prompts.

        Raises:
            ApiError: 503 while the model is being loaded, or if the server takes no requests.
        """
        self.engine_client.check_ready()
        assert self.loaded_renderer is not None
        return self.loaded_renderer

    @property
    def max_model_len(self) -> int:
        """Tokens that a request may have, prompt and answer."""
        assert self.engine_client.engine_info is not None
        return self.engine_client.engine_info.max_seq_len

    async def submit(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        thinking_enabled: bool = False,
    ) -> RequestHandle:
        """Puts prompts into the engine's queue.

        Raises:
            ApiError: the bridge or the engine refuses them; nothing is computed then.
        """
        handle = self.engine_client.submit(prompts, params, thinking_enabled)
        try:
            await handle.accepted()
        except BaseException:
            handle.close()
            raise
        return handle

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


def get_app_state(request: Request) -> AppState:
    """The server that got a request."""
    found: AppState = request.app.state.server
    return found
