"""Command-line parsing shared by the commands.

Reading order: command, arguments, learner_tree.
"""
