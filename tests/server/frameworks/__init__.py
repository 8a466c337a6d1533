"""Agent frameworks and coding agents on a scripted model; optional."""
