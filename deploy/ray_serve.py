"""tiny-llm's server on Ray Serve: several engines behind one address. Copy this file and edit it.

    pip install 'tiny-llm[ray]'
    cd deploy
    serve run ray_serve:app

`serve` is Ray's command. The endpoints are those of `tiny-llm serve`, at Ray's own port, 8000.
`RayServeArgs` says what each line means; the book's page on several machines says what to expect.
"""

from tiny_llm.server.replicas.ray_serve import RayServeArgs, build

app = build(
    RayServeArgs(
        model="demo",  # a name, hub id or folder that every machine of the cluster finds
        replicas=2,  # engines, at least
        # max_replicas=4,  # and at most, when queues grow
        target_ongoing_requests=16,  # of a replica, running and waiting, that autoscaling aims at
        cpus=1,  # that Ray sets aside for each engine
        threads=1,  # that each engine computes with
        kv_cache_bytes=2**29,
    )
)
