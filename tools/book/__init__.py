"""How the book is built and checked: chapters in `book/pages`, the site in `build/book/site`.

source.py    pieces of the project's source files, by task, function or signature
chapters.py  the chapters, their headings, code blocks and tasks
task_locations.py    where a task's learner writes, from the markers
expand.py    what is written in double braces, replaced by code and figures
links.py     every link of the built site
commands.py  code blocks that say they can be run, run
tasks.py     the chapters' tasks beside the tests'
build.py     pdm run book, pdm run book-build
check.py     pdm run book-check
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BOOK = ROOT / "book"
PAGES = BOOK / "pages"
BUILD = ROOT / "build" / "book"


class BookError(Exception):
    """Something in a chapter that cannot be: its message says where, and what."""
