"""`pdm run check-mac`: compiles and links the extension for a Mac, on Linux. See __main__.py."""
