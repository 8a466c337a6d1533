"""Tests of served models."""
