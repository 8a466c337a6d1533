"""The check that compiles the extension for a Mac, on Linux."""
