"""The engine, and a simulator of its scheduler."""
