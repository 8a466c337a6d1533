"""Development tools, run as `pdm run` scripts."""
