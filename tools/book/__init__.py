"""Builds the book from `book/pages` into `build/book/site`, and checks it.

source.py          excerpts of source files, by task, function or signature
chapters.py        chapters: headings, code blocks and tasks
task_locations.py  files and functions of a task, from the markers
expand.py          expands directives into code and figures
links.py           checks the links of the built site
commands.py        runs runnable code blocks
tasks.py           compares the tasks of chapters and tests
build.py           pdm run book, pdm run book-build
check.py           pdm run book-check
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BOOK = ROOT / "book"
PAGES = BOOK / "pages"
BUILD = ROOT / "build" / "book"


class BookError(Exception):
    """A defect of the book or a failed build; the message has chapter and line if known."""
