"""The agent: models, command, and rules that no task of Week 7 tests."""
