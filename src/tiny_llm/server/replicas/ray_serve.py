"""Replicas on Ray Serve: placed, watched, scaled and replaced by it, behind its HTTP proxy.

    serve run tiny_llm.server.replicas.ray_serve:build model=demo replicas=2

`serve` is Ray's command. A change of arguments followed by `serve deploy` is a rolling update: new
replicas start before old ones stop, and old ones finish their answers first.
"""

import os
from collections.abc import AsyncGenerator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.exceptions import RayActorError, RayTaskError, TaskCancelledError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from rich.console import Console
from starlette.types import ASGIApp, Message

from ...models.hub import find_config, find_model
from ..http.middleware import BodyLimitMiddleware
from ..settings import Settings
from .gateway import Gateway, ReplicaLostError, ReplicaRequest
from .replica import Replica

# Ray's own router. Its public name, ray.serve.llm.request_router, can be imported only where vLLM
# or SGLang is installed; the class itself needs neither.
ROUTER = (
    "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router."
    "PrefixCacheAffinityRouter"
)


class RayServeArgs(BaseModel):
    """What `serve run` takes as name=value, and a configuration file as `args`.

    Attributes:
        model: a name, hub id or folder, as for `tiny-llm serve`; on every machine of the cluster.
        served_model_name: what clients call it.
        replicas: engines; with max_replicas, the least number of them.
        max_replicas: if given, Ray starts up to so many when queues grow.
        target_ongoing_requests: a replica's requests, running and waiting, that autoscaling aims
            at.
        max_ongoing_requests: a replica's requests at once; more wait in the gateway.
        imbalanced_threshold: how many requests more than another a replica may have before load
            counts for more than a common prefix.
        cpus: that Ray sets aside for a replica.
        threads: that a replica computes with.
        kv_cache_bytes, max_num_seqs, max_num_batched_tokens, load_format: as for `tiny-llm serve`.
        api_key: what clients must send; TINY_LLM_API_KEY is the same.
        max_body_bytes: size of a request.
        drain_timeout: seconds that running requests get when a replica is replaced.
    """

    model_config = ConfigDict(extra="forbid")

    model: str = "demo"
    served_model_name: str | None = None
    replicas: int = Field(2, ge=1)
    max_replicas: int | None = Field(None, ge=1)
    target_ongoing_requests: float = Field(16, gt=0)
    max_ongoing_requests: int = Field(256, ge=1)
    imbalanced_threshold: int = Field(8, ge=0)
    cpus: float = Field(1, ge=0)
    threads: int = Field(1, ge=1)
    kv_cache_bytes: int = 2**29
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 256
    load_format: str = "auto"
    api_key: str | None = None
    max_body_bytes: int = 2**24
    drain_timeout: float = 30.0

    def engine(self) -> dict[str, object]:
        """Arguments of `LLM`."""
        names = {"kv_cache_bytes", "max_num_seqs", "max_num_batched_tokens", "load_format"}
        return self.model_dump(include=names)

    def settings(self) -> Settings:
        """Of each replica's server. Ray's proxy is what the network reaches, under any name."""
        return Settings(
            model_name=self.served_model_name or Path(self.model).name or self.model,
            api_key=self.api_key or os.environ.get("TINY_LLM_API_KEY") or None,
            allowed_hosts=("*",),
            max_body_bytes=self.max_body_bytes,
            drain_timeout=self.drain_timeout,
        )


class RayReplica:
    """A replica as Ray Serve wants it."""

    async def __init__(self, arguments: RayServeArgs):  # type: ignore[misc]  # Ray awaits it
        find = find_config if arguments.load_format == "dummy" else find_model
        self._replica = Replica(
            find(arguments.model, Console()), arguments.settings(), arguments.engine()
        )
        await self._replica.start()

    def check_health(self) -> None:
        """Ray calls it again and again, and replaces a replica where it raises."""
        self._replica.check_alive()

    async def handle_request(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        """See `Replica.handle_request`."""
        answering = self._replica.handle_request(request)
        try:
            async for messages in answering:
                yield messages
        finally:
            await answering.aclose()


class RayReplicaPool:
    """The replicas behind a handle of Ray Serve."""

    def __init__(self, handle: DeploymentHandle):
        self._ask = handle.options(stream=True).handle_request

    async def stream(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        """See `ReplicaPool.stream`."""
        # The router reads `prompt` of positional arguments, and cannot do with an empty one.
        asked = self._ask.remote(request) if request.prompt else self._ask.remote(request=request)
        try:
            async for messages in asked:
                yield messages
        except RayTaskError:
            raise  # a mistake in the replica: another would make it, too
        except (RayActorError, TaskCancelledError) as error:
            raise ReplicaLostError(str(error)) from error
        finally:
            asked.cancel()


class RayGateway:
    """The gateway as Ray Serve wants it: it gets what the proxy gets."""

    def __init__(self, handle: DeploymentHandle, max_body_bytes: int):
        self._app = BodyLimitMiddleware(Gateway(RayReplicaPool(handle)), limit=max_body_bytes)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Ray asks for the application by this name."""
        return self._app


def build(arguments: RayServeArgs) -> serve.Application:
    """The application that `serve run` and `serve deploy` start."""
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
        graceful_shutdown_timeout_s=arguments.drain_timeout,
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
        name="gateway",
        max_ongoing_requests=10_000,
        ray_actor_options={"num_cpus": 0},
    )(serve.ingress()(RayGateway))
    return gateway.bind(replicas, arguments.max_body_bytes)
