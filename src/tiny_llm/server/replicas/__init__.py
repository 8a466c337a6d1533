"""Several engines behind one address.

A gateway gets the requests and passes each to a replica: the whole server without a socket.
Only `ray_serve` imports Ray, which starts, watches and scales the replicas.
"""
