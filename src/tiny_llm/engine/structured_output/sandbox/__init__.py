"""Processes with time and memory limits, for grammars and schemas from clients.

Reading order: process, main, compile_handler, validator_handler.
"""
