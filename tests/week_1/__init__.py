"""Week 1 of the course, by day and task."""
