"""Command-line parsing shared by the commands.

Must not depend on how a model is run.

Reading order: command, arguments, input_text, learner_tree.
"""
