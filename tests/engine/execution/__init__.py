"""Sampling, logprobs, async scheduling, KV memory, 8-bit activations."""
