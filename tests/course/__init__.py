"""The course's starter, day by day; wrong solutions that tests must catch."""
