"""Cross-compilation for Apple silicon."""
