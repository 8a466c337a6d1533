"""What helps to develop: each module is a `pdm run` script, or belongs to one."""
