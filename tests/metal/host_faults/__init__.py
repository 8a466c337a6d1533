"""Mistakes in the code that starts kernels, each of which the emulated GPU must find.

faults     the mistakes: a text of a source file, and what stands there instead
build      the extension with all of them, each asleep until TINY_LLM_SEEDED_FAULT names it
exercise   calls that a mistake in an operation shows in; a program that tries them all
"""
