"""Checks the built site: broken links, external resources, leftover markup."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Elements and attributes whose resources a browser loads automatically, unlike links.
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}

# Syntax of Markdown extensions; its occurrence in a page's text means unprocessed markup.
MARKUP = ('=== "', "!!! ", "??? ", "$$", "{{", "[task ")


@dataclass
class Page(HTMLParser):
    """Anchors (ids), links and unprocessed Markdown of a page.

    `links` are (address, whether the browser loads it automatically).
    """

    anchors: set[str] = field(default_factory=set)
    links: list[tuple[str, bool]] = field(default_factory=list)
    markup: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._in_code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Records ids and references of a tag."""
        self._in_code += tag in ("code", "script", "style")
        values = dict(attrs)
        # Browsers do not load links with these relations.
        not_fetched = tag == "link" and values.get("rel") in ("canonical", "prev", "next")
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif (tag, name) in LOADED and not not_fetched:
                self.links.append((value, True))
            elif (tag, name) == ("a", "href"):
                self.links.append((value, False))

    def handle_endtag(self, tag: str) -> None:
        """Tracks the end of code elements, which may contain Markdown syntax."""
        self._in_code -= tag in ("code", "script", "style")

    def handle_data(self, data: str) -> None:
        """Records leftover markup."""
        if not self._in_code and data.lstrip().startswith(MARKUP):
            self.markup.append(data.strip().split("\n")[0])


def broken_links(site: Path) -> list[str]:
    """Broken links, external resources and unprocessed markup, one sentence each."""
    pages = {file.resolve(): _read(file) for file in site.rglob("*.html")}
    errors = []
    for file, page in sorted(pages.items()):
        name = file.relative_to(site.resolve())
        errors += [f"{name}: {text!r} is unprocessed markup" for text in page.markup]
        for link, loaded in page.links:
            problem = _problem(link, loaded, file, site.resolve(), pages)
            if problem:
                errors.append(f"{name}: {problem}")
    return errors


def _read(file: Path) -> Page:
    page = Page()
    page.feed(file.read_text(encoding="utf-8"))
    return page


def _problem(
    link: str, loaded: bool, file: Path, site: Path, pages: dict[Path, Page]
) -> str | None:
    """Error message for a link, or None if the link is correct."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https") or link.startswith("//"):
        return f"loads {link} from another site" if loaded else None
    if parts.scheme:  # mailto:, data:
        return None
    path = unquote(parts.path)
    if file.name == "404.html":
        return None  # the error page is served at any address, so its links are absolute
    target = (site / path.lstrip("/") if path.startswith("/") else file.parent / path).resolve()
    target = file if not path else target / "index.html" if target.is_dir() else target
    if not target.exists():
        return f"the target of link {link} does not exist"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return f"the target page of link {link} lacks the anchor"
    return None
