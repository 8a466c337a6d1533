"""The commands: one file each, thin, over what the package offers to everybody."""
