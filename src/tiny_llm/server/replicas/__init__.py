"""Several engines behind one address.

`gateway` receives requests and passes each to a `replica`, chosen by `routing`; a replica is the
whole server without a socket.
Only `ray_serve` imports Ray, which starts, watches and scales the replicas.
"""
