"""Tests with official artifacts of other projects; see `tools/real_artifacts.py`."""
