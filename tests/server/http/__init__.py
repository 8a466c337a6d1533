"""Connections, limits and error responses."""
