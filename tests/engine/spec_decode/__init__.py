"""Draft token proposers."""
