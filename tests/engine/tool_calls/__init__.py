"""Tool call formats: parsers, grammars and chat templates."""
