"""Import rules of `tiny_llm`, its module tree and its import diagram.

imports   imports of each module, from the syntax trees
rules     layers and components, and the checks
asserts   asserts with side effects
tree      the module tree in ARCHITECTURE.md
diagram   the import diagram
"""
