"""Seeded faults in host code, each detected by the emulated GPU.

faults     list of faults: original source text and its replacement
build      builds the extension with all faults, each inactive unless TINY_LLM_SEEDED_FAULT names it
exercise   calls that expose each operation's faults; a program that tries all faults
"""
