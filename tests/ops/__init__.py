"""The extension's operations."""
