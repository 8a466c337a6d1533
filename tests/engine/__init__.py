"""Engine tests, and a simulator of its scheduler."""
