"""Sampling, log-probabilities and async scheduling."""
