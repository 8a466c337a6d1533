"""The course's starter, day by day, and wrong solutions that tests must catch."""
