"""Health, tokenization, the engine view and the web UI."""
