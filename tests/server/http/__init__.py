"""Tests of HTTP connections, limits and error responses."""
