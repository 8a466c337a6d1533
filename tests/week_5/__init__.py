"""Week 5 of the course, by day and task."""
