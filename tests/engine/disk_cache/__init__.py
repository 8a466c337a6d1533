"""Prefix cache on disk: correct tokens, corrupt files, full disks, crashes."""
