"""Optional tests of agent frameworks and coding agents on a scripted model."""
