"""Week 2 of the course, by day and task."""
