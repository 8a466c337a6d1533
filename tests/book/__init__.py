"""The book's tools: includes, links, commands."""
