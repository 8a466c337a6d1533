"""The starter tree by day, and wrong solutions that the tests must catch."""
