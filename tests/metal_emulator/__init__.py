"""The Metal emulator: semantics, type errors, seeded faults."""
