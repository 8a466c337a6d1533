"""tiny-llm on Ray Serve: several engines behind one address. Copy and edit this file.

    pip install 'tiny-llm[ray]'
    cd deploy
    serve run ray_serve:app

`serve` is Ray's command. The endpoints are those of `tiny-llm serve`, on Ray's port 8000. See
`RayServeArgs` for the arguments, and the book's page on several machines for measurements.
"""

from tiny_llm.server.replicas.ray_serve import RayServeArgs, build

app = build(
    RayServeArgs(
        model="demo",  # name, hub id or folder, available on every machine
        replicas=2,  # number of engines; the minimum with max_replicas
        # max_replicas=4,  # maximum for autoscaling
        target_ongoing_requests=16,  # autoscaling target per replica
        cpus=1,  # reserved by Ray for each engine
        threads=1,  # compute threads of each engine
        kv_cache_bytes=2**29,
    )
)
