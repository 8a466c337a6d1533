"""The book's drawings: every public function of a module here returns one SVG.

Colours come from the page's stylesheet (book/assets/book.css), by class, so that a drawing follows
the theme: boxes `a` to `e` and `n` (neutral). Units are those of the text: 13 high, and at most 640
wide.
"""
