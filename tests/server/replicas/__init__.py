"""Replicas behind one address."""
