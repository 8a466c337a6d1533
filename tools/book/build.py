"""`pdm run book-build` builds the book; `pdm run book` also serves it."""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from . import BOOK, BUILD, ROOT, BookError
from .expand import expand_all
from .links import broken_links

CONFIG = (
    BUILD / "zensical.toml"
)  # in build/, because Zensical writes its output next to its configuration


def build() -> Path:
    """Builds the site, checks its links, and returns its folder.

    Raises:
        BookError: a broken directive, link or anchor, or a Zensical warning.
    """
    prepare()
    result = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(CONFIG)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        output = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)  # removes color codes
        raise BookError(f"zensical build --strict:\n{output or result.stderr}")
    site = BUILD / "site"
    errors = broken_links(site)
    if errors:
        raise BookError("\n".join(errors))
    return site


def serve(address: str) -> None:
    """Serves the book until Ctrl-C; rebuilds after changes to its sources."""
    prepare()
    threading.Thread(target=_expand_after_changes, daemon=True).start()
    subprocess.run(
        [sys.executable, "-m", "zensical", "serve", "-f", str(CONFIG), "--dev-addr", address],
        cwd=ROOT,
    )


def prepare() -> None:
    """Writes expanded pages and Zensical's configuration, or raises `BookError`."""
    if importlib.util.find_spec("zensical") is None:
        raise BookError(
            "the book requires Zensical, which is not installed; run `./pdmw run book` or "
            "`pdm install`."
        )
    expand_all()
    text = (BOOK / "zensical.toml").read_text(encoding="utf-8")
    CONFIG.write_text(with_repository(text, os.environ.get("GITHUB_REPOSITORY")), encoding="utf-8")


def with_repository(config: str, repository: str | None) -> str:
    """Adds links to repository, page sources and feedback form to zensical.toml.

    `repository` is owner/name, from GITHUB_REPOSITORY in a GitHub workflow; None adds no links.
    """
    if not repository:
        return config
    url = f"https://github.com/{repository}"
    lines = f'repo_url = "{url}"\nrepo_name = "{repository}"\nedit_uri = "edit/main/book/pages/"\n'
    feedback = f"<a href='{url}/issues/new?template=course.yml'>Unclear or wrong? Tell us.</a> "
    config = config.replace("[project]\n", f"[project]\n{lines}", 1)
    config = config.replace('copyright = "', f'copyright = "{feedback}', 1)
    return config.replace("features = [\n", 'features = [\n  "content.action.edit",\n', 1)


def _expand_after_changes() -> None:
    """Re-expands the chapters when a chapter or an included file changes."""
    watched = [BOOK, ROOT / "src", ROOT / "tools", ROOT / "benchmark"]
    before = time.time()
    while True:
        time.sleep(1)
        now = time.time()
        changed = any(
            file.stat().st_mtime >= before
            for folder in watched
            for file in folder.rglob("*")
            if file.is_file() and file.suffix != ".pyc"
        )
        if changed:
            try:
                expand_all()
            except BookError as error:
                print(error, file=sys.stderr)
        before = now


def main() -> int:
    """Runs the command. Exit status: 0, or 1 after an error."""
    parser = argparse.ArgumentParser(prog="book", description=__doc__)
    parser.add_argument("--serve", action="store_true", help="serve and rebuild on changes")
    parser.add_argument("--address", default="localhost:8000", metavar="HOST:PORT")
    args = parser.parse_args()
    try:
        if args.serve:
            serve(args.address)
        else:
            print(f"the book is in {build().relative_to(ROOT)}/index.html")
    except KeyboardInterrupt:
        pass
    except BookError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
