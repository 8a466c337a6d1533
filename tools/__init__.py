"""What helps to develop, and what the course needs: the commands of `pdm run`."""
