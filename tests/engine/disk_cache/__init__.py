"""Prefix cache on disk: unchanged tokens, corrupt files, full disks, killed processes."""
