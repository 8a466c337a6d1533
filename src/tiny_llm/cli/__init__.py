"""The commands: a thin file each, on top of the package's public names.

A command's own flags are in its file; those that several commands share are in `arguments`.
"""
