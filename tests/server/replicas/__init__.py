"""Tests of replicas behind one address: routing, gateway, Ray Serve."""
