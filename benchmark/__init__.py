"""Measurements and what they need. Nothing in the package imports from here."""
