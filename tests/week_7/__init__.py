"""Week 7 of the course, by day and task."""
