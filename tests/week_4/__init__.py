"""Week 4 of the course, by day and task."""
