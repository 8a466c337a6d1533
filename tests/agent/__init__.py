"""Agent tests beyond the tasks of Week 7: branches, chat models, command line."""
