"""Replicas: several engines behind one address.

`gateway` routes each request to a replica, a complete server without a socket. Only `ray_serve`
imports Ray, which places, monitors and scales the replicas.

Reading order: routing, gateway, ray_serve.
"""
