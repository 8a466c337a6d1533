"""Engine tests and a scheduler simulator."""
