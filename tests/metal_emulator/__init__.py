"""The Metal emulator: semantics, type errors and seeded faults."""
