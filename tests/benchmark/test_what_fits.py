"""The book's table of what fits is the code's."""

from pathlib import Path

from benchmark.what_fits import table

PAGE = Path(__file__).resolve().parents[2] / "book" / "pages" / "families.md"


def test_books_table_is_up_to_date():
    lines = list(table())
    assert len(lines) == 2 + 6
    text = PAGE.read_text(encoding="utf-8")
    assert "\n".join(lines) in text, "paste the output of `python -m benchmark.what_fits`"
