"""Week 6 of the course, by day and task."""
