"""Diagrams of the book: each public function returns one SVG.

Colors come from the page's stylesheet (book/assets/book.css) by class, so that diagrams follow the
theme: boxes `a` to `e` and `n` (neutral). Text is 13 units high; diagrams are at most 640 wide.
"""
