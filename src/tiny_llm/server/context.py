"""State shared by the endpoints: engine client, prompt renderer, defaults."""

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
    """The server's state, as `app.state.server`.

    Attributes:
        settings: server settings.
        engine_client: client of the engine thread.
        defaults: default sampling parameters.
        created: Unix time of the server's start.
        loaded_renderer: None until the tokenizer has loaded.
        prefix_warmup: precomputes likely next turns.
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
        """The prompt renderer.

        Raises:
            ApiError: 503, the server is not ready.
        """
        self.engine_client.check_ready()
        assert self.loaded_renderer is not None
        return self.loaded_renderer

    @property
    def max_model_len(self) -> int:
        """Maximum number of tokens of a prompt and its completion."""
        assert self.engine_client.engine_info is not None
        return self.engine_client.engine_info.max_seq_len

    async def submit(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        thinking_enabled: bool = False,
    ) -> RequestHandle:
        """Submits prompts and waits until the engine has queued them.

        Raises:
            ApiError: a prompt was rejected, in which case none is computed.
        """
        handle = self.engine_client.submit(prompts, params, thinking_enabled)
        try:
            await handle.accepted()
        except BaseException:
            handle.close()
            raise
        return handle

    def check_model(self, name: str | None) -> None:
        """Checks that a model is served; None selects the served model.

        Raises:
            ApiError: 404, it is not.
        """
        if name is not None and name != self.settings.model_name:
            raise ApiError(
                404,
                f"The model '{name[:100]}' does not exist; this server serves "
                f"'{self.settings.model_name}'.",
                "model",
                "model_not_found",
            )


def get_app_state(request: Request) -> AppState:
    """Returns the state of the request's server."""
    state: AppState = request.app.state.server
    return state
