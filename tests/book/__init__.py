"""Book tools: includes, links, commands."""
