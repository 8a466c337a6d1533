"""Command-line parsing shared by the commands.

Reading order: command, arguments.
"""
