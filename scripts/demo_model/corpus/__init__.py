"""The demo model's corpus: chats from tables and templates, the same for the same seed."""
