"""The cross-compiled build for Apple Silicon."""
