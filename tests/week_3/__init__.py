"""Week 3 of the course, by day and task."""
