"""The scheduler, pages and the prefix cache."""
