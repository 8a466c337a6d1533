"""Import rules of the package, its module tree and its import diagram.

imports   imports of each module, from the syntax trees
rules     layers and components, and the checks
tree      the tree in ARCHITECTURE.md
diagram   the import diagram
"""
