"""Ray Serve deployment: placement, health checks, autoscaling, updates.

    serve run tiny_llm.server.replicas.ray_serve:build model=demo replicas=2

`serve` is Ray's command. `serve deploy` with changed arguments is a rolling update: new replicas
start before old ones stop, and old ones finish their requests first.
"""

import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from ray import serve
from ray.exceptions import RayActorError, RayTaskError, TaskCancelledError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from rich.console import Console
from starlette.types import ASGIApp, Message

from ...engine.engine_args import EngineArgs
from ...engine.inputs.options import parse_options
from ...errors import UserError
from ...models.hub import find_files
from ..http.middleware import BodyMiddleware
from ..settings import MIN_BODY_BYTES, Settings
from .gateway import Gateway, Replica, ReplicaLostError, ReplicaRequest

# Ray's router. Its public module, ray.serve.llm.request_router, requires vLLM or SGLang to be
# installed; the class itself does not.
ROUTER = (
    "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router."
    "PrefixCacheAffinityRouter"
)


class RayServeArgs(BaseModel):
    """Arguments of `serve run` (name=value), and `args` in a configuration file.

    Options of `EngineArgs` and `Settings` are arguments, too, e.g. `max_num_seqs=8`; the default
    `kv_cache_bytes` is 512 MiB.

    Attributes:
        model: name, Hub id or folder, as for `tiny-llm serve`; must be available on every machine.
        replicas: number of replicas; with max_replicas, the minimum.
        max_replicas: maximum for autoscaling; None for a fixed number.
        target_ongoing_requests: autoscaling target: running and waiting requests per replica.
        max_ongoing_requests: maximum requests per replica; others wait in the gateway.
        imbalanced_threshold: queue length difference beyond which load outweighs prefix affinity.
        cpus: CPUs that Ray reserves per replica.
        threads: compute threads per replica.
    """

    model_config = ConfigDict(extra="allow")

    model: str = "demo"
    served_model_name: str | None = None
    replicas: int = Field(2, ge=1)
    max_replicas: int | None = Field(None, ge=1)
    target_ongoing_requests: float = Field(16, gt=0)
    max_ongoing_requests: int = Field(256, ge=1)
    imbalanced_threshold: int = Field(8, ge=0)
    cpus: float = Field(1, ge=0)
    threads: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.engine_args().tensor_parallel_size > 1:
            raise UserError("tensor_parallel_size must be 1 with replicas; omit it.")
        self.settings()
        return self

    def _options(self) -> list[dict[str, Any]]:
        return parse_options(self.model_extra or {}, EngineArgs, Settings)

    def engine_args(self) -> EngineArgs:
        return EngineArgs(
            self.model, **{"kv_cache_bytes": 2**29, "seed": None, **self._options()[0]}
        )

    def settings(self) -> Settings:
        """Settings of a replica. Any Host header is allowed: clients reach only Ray's proxy."""
        engine, server = self._options()
        defaults = {
            "model_names": (self.served_model_name or Path(self.model).name or self.model,),
            "adapter_names": tuple(engine.get("lora_modules", ())),
            "api_key": os.environ.get("TINY_LLM_API_KEY") or None,
            "allowed_hosts": ("*",),
            "max_body_bytes": MIN_BODY_BYTES,
        }
        return Settings(**{**defaults, **server})


class RayReplica:
    async def __init__(self, arguments: RayServeArgs):  # type: ignore[misc]  # Ray awaits it
        args = arguments.engine_args()
        folder = str(find_files(arguments.model, Console(), args.load_format))
        self._replica = Replica(replace(args, model=folder), arguments.settings())
        await self._replica.start()

    def check_health(self) -> None:
        """Ray's periodic health check; a replica that raises is replaced."""
        self._replica.check_alive()

    async def handle_request(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        batches = self._replica.handle_request(request)
        try:
            async for messages in batches:
                yield messages
        finally:
            await batches.aclose()


class RayReplicaPool:
    def __init__(self, handle: DeploymentHandle):
        self._handle_request = handle.options(stream=True).handle_request

    async def stream(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        # Ray's router reads `prompt` from positional arguments and fails if it is empty. A request
        # without a prompt is therefore passed by keyword.
        batches = (
            self._handle_request.remote(request)
            if request.prompt
            else self._handle_request.remote(request=request)
        )
        try:
            async for messages in batches:
                yield messages
        except RayTaskError:
            raise  # an exception in the replica's code, which would recur on a retry
        except (RayActorError, TaskCancelledError) as error:
            raise ReplicaLostError(str(error)) from error
        finally:
            batches.cancel()


class RayGateway:
    """Ray Serve ingress: receives all requests from the HTTP proxy."""

    def __init__(self, handle: DeploymentHandle, max_body_bytes: int):
        gateway = Gateway(RayReplicaPool(handle))
        self._app = BodyMiddleware(gateway, lambda: max_body_bytes, Settings.body_timeout)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Returns the ASGI application; the name is Ray's."""
        return self._app


def build(arguments: RayServeArgs) -> serve.Application:
    """Builds the application for `serve run` and `serve deploy`."""
    settings = arguments.settings()
    scaling = None
    if arguments.max_replicas is not None:
        scaling = AutoscalingConfig(
            min_replicas=arguments.replicas,
            max_replicas=arguments.max_replicas,
            target_ongoing_requests=arguments.target_ongoing_requests,
        )
    replicas = serve.deployment(
        name="replica",
        num_replicas=None if scaling else arguments.replicas,
        autoscaling_config=scaling,
        max_ongoing_requests=arguments.max_ongoing_requests,
        health_check_period_s=2,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=settings.drain_timeout,
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER,
            request_router_kwargs={
                "imbalanced_threshold": arguments.imbalanced_threshold,
                "do_eviction": True,
            },
        ),
        ray_actor_options={
            "num_cpus": arguments.cpus,
            "runtime_env": {"env_vars": {"TINY_LLM_NUM_THREADS": str(arguments.threads)}},
        },
    )(RayReplica).bind(arguments)
    gateway = serve.deployment(
        name="gateway", max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0}
    )(serve.ingress()(RayGateway))
    return gateway.bind(replicas, settings.max_body_bytes)
