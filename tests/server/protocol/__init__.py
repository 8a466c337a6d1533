"""Output parsing, streaming and disconnects."""
