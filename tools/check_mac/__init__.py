"""`pdm run check-mac`: cross-compiles the extension for macOS on Linux."""
