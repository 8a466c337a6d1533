"""Tests of health endpoints, metrics, engine state and the web UI."""
