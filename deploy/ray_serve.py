"""Ray Serve deployment of several engines behind one address: a template.

    pip install 'tiny-llm[ray]'
    cd deploy
    serve run ray_serve:app

Copy and edit this file. `serve` is Ray's command; the endpoints are the same as for `tiny-llm
serve`, on Ray's port, 8000. `RayServeArgs` documents each argument; book/pages/parallel.md gives
the expected performance.
"""

from tiny_llm.server.replicas.ray_serve import RayServeArgs, build

app = build(
    RayServeArgs(
        model="demo",  # short name, hub id, or a folder present on every node of the cluster
        replicas=2,  # minimum number of engines
        # max_replicas=4,  # maximum number of engines, for autoscaling
        target_ongoing_requests=16,  # autoscaling target per replica, running and waiting
        cpus=1,  # CPUs that Ray reserves per engine
        threads=1,  # compute threads per engine
        kv_cache_bytes=2**29,
    )
)
