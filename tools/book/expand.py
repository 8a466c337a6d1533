"""Expands directives in double braces to code, figures and notes.

    {{ include src/tiny_llm/basics.py function softmax }}    an excerpt, see source.py
    {{ solution src/tiny_llm/basics.py function softmax }}   an excerpt, collapsed
    {{ figure attention_shapes: The shapes of attention. }}  a drawing from book/diagrams
    {{ awaited 2.3.3: The kernel is not there yet. }}        a note while a task is in tasks.PENDING
    {{ flags EngineArgs serve main }}                        options of serve without those of main

Below a task's heading, the task's files and functions are inserted, from the `[task …]` markers in
the sources. A link to `src:PATH` points to a page with that file. `runnable`, `clang` and `output`
after a fence, which commands.py interprets, are removed. Errors name chapter and line.
"""

import html
import importlib
import inspect
import pkgutil
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from tiny_llm.cli.parsing.arguments import flag_name
from tiny_llm.engine.engine_args import EngineArgs
from tiny_llm.engine.inputs.options import options_of
from tiny_llm.server.settings import Settings
from tools.course.tasks import TASKS
from tools.course.tasks import day_of as course_day

from . import BOOK, BUILD, PAGES, ROOT, BookError
from .chapters import FENCE, TASK, chapters, day_of, where
from .source import LANGUAGES, extract_snippet
from .task_locations import task_locations_line
from .tasks import PENDING

# Inserted after the heading of a task without markers.
NO_MARKERS = (
    "*The starter still has the solution's code for this task. To write it yourself, delete the "
    "bodies of the functions named here, in a branch of the repository.*"
)

NARROW_WIDTH = 480  # SVG units; drawings up to this width are legible on a phone
DIRECTIVE = re.compile(r"^(\s*)\{\{\s*(\w+)\s+(.*?)\s*\}\}\s*$")
SOURCE_LINK = re.compile(r"\]\(src:([^)#\s]+)\)")


def expand_all(target: Path = BUILD / "pages") -> None:
    """Writes chapters, linked files' pages and assets; raises `BookError`."""
    expander = Expander()
    written = {}
    for chapter in chapters():
        written[target / chapter.relative_to(PAGES)] = expander.expand(chapter)
    for file in sorted(expander.files):
        written[target / "source" / f"{file}.md"] = _source_page(file)
    for asset in sorted((BOOK / "assets").rglob("*")):
        if asset.is_file():
            copy = target / "assets" / asset.relative_to(BOOK / "assets")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(asset, copy)
    for page in target.rglob("*.md"):
        if page not in written:
            page.unlink()
    for page, text in written.items():
        page.parent.mkdir(parents=True, exist_ok=True)
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


class Expander:
    """Expands chapters; `files` are the source files linked so far."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._figures = _figures()

    def expand(self, chapter: Path) -> str:
        """Expands a chapter's directives; a `BookError` has chapter and line."""
        lines = []
        fence = ""  # opening characters of the current code block
        day = day_of(chapter)
        for number, line in enumerate(chapter.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                fenced = FENCE.match(line)
                if fenced and not fence:
                    fence = fenced[2]
                    line = _without_keywords(line)
                elif fence:
                    fence = "" if line.strip() == fence else fence
                else:
                    line = self._directive(line, chapter)
                    line = SOURCE_LINK.sub(lambda link: self._link(link[1], chapter), line)
                    line += _locations(line, day)
            except BookError as error:
                raise BookError(f"{where(chapter, number)}: {error}") from error
            lines.append(line)
        return "\n".join(lines) + "\n"

    def _directive(self, line: str, chapter: Path) -> str:
        directive = DIRECTIVE.match(line)
        if not directive:
            if "{{" in line:
                raise BookError("a '{{' directive must be on its own line")
            return line
        indent, name, rest = directive.groups()
        if name == "figure":
            text = self._figure(rest)
        elif name in ("include", "solution"):
            text = self._code(rest, chapter, folded=name == "solution")
        elif name == "awaited":
            text = _pending_note(rest)
        elif name == "flags":
            text = _flag_table(*rest.split())
        else:
            known = "include, solution, figure, awaited and flags"
            raise BookError(f"unknown directive '{name}'; use one of {known}")
        return "\n".join(indent + part if part else part for part in text.splitlines())

    def _code(self, rest: str, chapter: Path, folded: bool) -> str:
        path, kind, name = (*rest.split(maxsplit=2), "", "")[:3]
        cut = extract_snippet(ROOT / path, kind, name)
        label = f"`{path}`, line {cut.first_line}"
        link = self._link(path, chapter).removeprefix("](").removesuffix(")")
        text = f"```{cut.language}\n{cut.text}\n```\n\n[{label}]({link}){{ .source }}"
        if not folded:
            return text
        title = f"Our solution: {name.removesuffix('.__call__').split('.')[-1] or Path(path).name}"
        body = "\n".join("    " + line if line else line for line in text.splitlines())
        return f'??? success "{title}"\n\n{body}'

    def _figure(self, rest: str) -> str:
        name, _, caption = rest.partition(":")
        if name not in self._figures:
            raise BookError(f"book/diagrams has no function {name}")
        caption = html.escape(caption.strip(), quote=False)
        svg = self._figures[name]().replace("\n", "")
        label = html.escape(re.sub(r"[`*$]", "", caption), quote=True)
        width = re.search(r'viewBox="0 0 ([\d.]+)', svg)
        narrow = " narrow" if width and float(width[1]) <= NARROW_WIDTH else ""
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
        caption = re.sub(r"`([^`]+)`", r"<code>\1</code>", caption)
        caption = re.sub(r"\*([^*]+)\*", r"<em>\1</em>", caption)
        return (  # on one line, because Markdown would change HTML with line breaks
            f'<figure class="diagram{narrow}"><div class="drawing">{svg}</div>'
            f"<figcaption>{caption}</figcaption></figure>"
        )

    def _link(self, path: str, chapter: Path) -> str:
        """Second half of a Markdown link, `](…)`, from a chapter to a source file's page."""
        if not (ROOT / path).is_file():
            raise BookError(f"file {path} does not exist")
        self.files.add(path)
        up = "../" * (len(chapter.relative_to(PAGES).parts) - 1)
        return f"]({up}source/{path}.md)"


def _pending_note(rest: str) -> str:
    """Note on a pending task; empty once the task has tests."""
    task, _, note = rest.partition(":")
    if task not in TASKS:
        raise BookError(f"unknown task {task}")
    return f'!!! note "Work in progress"\n\n    {note.strip()}' if task in PENDING else ""


def _flag_table(owner: str, command: str, other: str = "") -> str:
    """Table of the options of `EngineArgs` or `Settings` that one command has and another lacks."""
    lines = ["| flag | meaning |", "|---|---|"]
    for name, option in options_of({"EngineArgs": EngineArgs, "Settings": Settings}[owner]).items():
        if command in option.commands and other not in option.commands:
            value = "\\|".join(map(str, option.choices)) or option.metavar or ""
            flags = [option.flag or flag_name(name), *filter(None, [option.alias])]
            if option.parse is bool and option.default:
                flags.append(flags[0].replace("--", "--no-"))
            shown = ", ".join(f"`{flag} {value}`".replace(" `", "`") for flag in flags)
            shown = f"[{shown}]({option.doc_link})" if option.doc_link else shown
            default = f" ({option.shown_default})" if option.shown_default else ""
            text = re.sub(r"(--[a-z-]+|'\*')", r"`\1`", option.help + default)
            lines.append(f"| {shown} | {text} |")
    return "\n".join(lines)


def _locations(line: str, day: tuple[int, int] | None) -> str:
    """A task's files and functions, to insert below its heading; empty for other lines."""
    task = TASK.match(line)
    if task is None or day is None:
        return ""
    locations = task_locations_line(f"{course_day(*day).id}.{task[1]}")
    return f"\n\n{locations or NO_MARKERS}"


def _without_keywords(fence: str) -> str:
    """An opening fence without the keywords that commands.py interprets."""
    return re.sub(r"\s+(runnable|output|clang)\b", "", fence)


def _source_page(path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8").rstrip("\n")
    language = LANGUAGES.get(Path(path).suffix, "text")
    return (
        f"---\ntitle: {Path(path).name}\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n\n"
        f"# `{path}`\n\nThe file as it was when the book was built.\n\n"
        f'````{{ .{language} linenums="1" }}\n{text}\n````\n'
    )


def _figures() -> dict[str, Callable[[], str]]:
    """Drawing functions by name: the public functions of book/diagrams."""
    package = importlib.import_module("book.diagrams")
    found: dict[str, Callable[[], str]] = {}
    for module_info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"book.diagrams.{module_info.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                found[name] = function
    return found
