"""Command-line parsing shared by the commands.

Independent of how models run.

Reading order: command, arguments, input_text, learner_tree.
"""
