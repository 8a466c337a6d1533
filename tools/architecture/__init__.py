"""The architecture of the package: its rules, checked, and its picture.

imports   what each file imports, from the syntax trees
rules     floors and components, and what breaks a rule
drawing   the picture of them
"""
