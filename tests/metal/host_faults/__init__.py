"""Seeded faults in host code, all detected by the emulated GPU.

faults     list of faults: original source text and its replacement
build      builds the extension with all faults; TINY_LLM_SEEDED_FAULT activates one of them
exercise   calls that expose each operation's faults, and a program that tries all faults
"""
