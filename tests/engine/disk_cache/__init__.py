"""Prefix cache on disk: same tokens, damaged files, full disks, killed processes."""
