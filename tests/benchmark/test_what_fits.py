"""The book's memory table matches the output of `benchmark.what_fits`."""

from pathlib import Path

from benchmark.what_fits import table

PAGE = Path(__file__).resolve().parents[2] / "book" / "pages" / "families.md"


def test_table_in_the_book_is_up_to_date():
    lines = list(table())
    assert len(lines) == 2 + 6
    text = PAGE.read_text(encoding="utf-8")
    assert "\n".join(lines) in text, (
        "outdated table: paste the output of `python -m benchmark.what_fits`"
    )
