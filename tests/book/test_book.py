"""Book checks: chapters, figures, links, commands and tasks."""

import re
import tomllib
import xml.etree.ElementTree as ElementTree

import pytest

from tools.book import BOOK, PAGES, ROOT, BookError
from tools.book.build import with_repository
from tools.book.chapters import blocks, chapters
from tools.book.commands import commands_of, matches, run
from tools.book.expand import Expander, _figures
from tools.book.links import broken_links
from tools.book.task_locations import task_locations_line
from tools.book.tasks import PENDING, check_tasks, tasks_of_tests
from tools.course.tasks import TASKS

FIGURES = _figures()


@pytest.fixture
def chapter(monkeypatch, tmp_path):
    """Returns a function that writes a chapter with the given text."""
    monkeypatch.setattr("tools.book.expand.PAGES", tmp_path)
    monkeypatch.setattr("tools.book.chapters.PAGES", tmp_path)

    def write(text):
        file = tmp_path / "chapter.md"
        file.write_text(text)
        return file

    return write


def test_published_book_links_to_its_repository():
    text = (BOOK / "zensical.toml").read_text(encoding="utf-8")
    assert with_repository(text, None) == text, "without a repository, the text must be unchanged"
    project = tomllib.loads(with_repository(text, "someone/tiny-llm"))["project"]
    assert project["repo_url"] == "https://github.com/someone/tiny-llm"
    assert "tiny-llm/issues/new?template=course.yml" in project["copyright"]
    assert (ROOT / ".github/ISSUE_TEMPLATE/course.yml").exists(), "expected the issue form to exist"
    assert "content.action.edit" in project["theme"]["features"]


@pytest.fixture
def expanded(chapter):
    """Returns a function that expands a chapter's text."""
    return lambda text: Expander().expand(chapter(text))


def test_code_is_included_with_a_link_to_its_file(expanded):
    text = expanded("{{ include src/tiny_llm/basics.py signature linear }}\n")
    assert "```python\ndef linear(" in text
    assert "](source/src/tiny_llm/basics.py.md)" in text
    assert "x @ w.T" not in text
    text = expanded("{{ solution src/tiny_llm/basics.py function linear }}\n")
    assert text.startswith('??? success "Our solution: linear"\n\n    ```python\n')
    assert "    y = x @ w.T" in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{{ include src/tiny_llm/basics.py function nothing }}", "no function or class nothing"),
        ("{{ include src/nothing.py file }}", "does not exist"),
        ("{{ figure nothing: a picture }}", "book/diagrams has no function nothing"),
        ("{{ paste something }}", "unknown directive 'paste'"),
        ("text {{ include x }}", "must be on its own line"),
        ("[file](src:src/nothing.py)", "file src/nothing.py does not exist"),
    ],
)
def test_failed_include_names_chapter_and_line(expanded, line, message):
    with pytest.raises(BookError, match=rf"chapter.md:3: .*{re.escape(message)}"):
        expanded(f"# Title\n\n{line}\n")


def test_code_is_unchanged_except_for_check_directives(expanded):
    text = "```text\n{{ include nothing }}\n```\n"
    assert expanded(text) == text
    assert expanded("```sh runnable\ntrue\n```\n") == "```sh\ntrue\n```\n"


def test_task_heading_is_followed_by_its_locations(expanded, monkeypatch):
    text = "---\nday: 1.2\n---\n\n## Task 1: pairs\n\nText.\n"
    assert "## Task 1: pairs\n\n**To write:** `RoPE.cos_sin`" in expanded(text)
    monkeypatch.setattr("tools.book.expand.task_locations_line", lambda task: None)
    assert "still has the solution's code" in expanded(text)


def test_every_marked_task_lists_its_locations():
    for task in TASKS.keys() - PENDING:
        assert task_locations_line(task), f"no source file has a marker of task {task}"


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_figures_are_well_formed_and_text_stays_inside(name):
    root = ElementTree.fromstring(FIGURES[name]())
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert width <= 640
    assert FIGURES[name].__doc__
    for element in root.iter():
        tag = element.tag.split("}")[-1]
        get = lambda key, element=element: float(element.attrib[key])  # noqa: E731
        if tag == "rect":
            assert 0 <= get("x") <= get("x") + get("width") <= width
            assert 0 <= get("y") <= get("y") + get("height") <= height
        elif tag == "text":
            # A character is about 6.5 SVG units wide at font size 13, and 5.5 at smaller sizes.
            small = 5.5 if "small" in element.attrib["class"] else 6.5
            length = small * len(element.text or "")
            shift = {"start": 0, "middle": 0.5, "end": 1}[element.attrib["text-anchor"]]
            begin = get("x") - shift * length
            assert begin > -12, f"{element.text!r} extends beyond the left edge"
            assert begin + length < width + 24, f"{element.text!r} extends beyond the right edge"
            assert 0 < get("y") <= height, element.text


def test_every_figure_is_in_a_chapter():
    text = "".join(chapter.read_text(encoding="utf-8") for chapter in chapters())
    assert set(re.findall(r"\{\{ figure (\w+):", text)) == set(FIGURES)


def test_every_chapter_is_in_the_navigation():
    config = (ROOT / "book" / "zensical.toml").read_text(encoding="utf-8")
    listed = set(re.findall(r'= "([\w/]+\.md)"', config))
    assert listed == {chapter.relative_to(PAGES).as_posix() for chapter in chapters()}


def test_broken_links_and_unrendered_markup_are_detected(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<h1 id="top">x</h1>')
    (tmp_path / "index.html").write_text(
        '<a href="other/">1</a><a href="other/#top">2</a><a href="https://example.org">3</a>'
        '<a href="gone/">4</a><a href="other/#bottom">5</a>'
        '<script src="https://cdn.example.org/x.js"></script>'
    )
    actual = broken_links(tmp_path)
    assert len(actual) == 3
    assert "gone/ does not exist" in actual[0]
    assert "other/#bottom lacks the anchor" in actual[1]
    assert "cdn.example.org/x.js from another site" in actual[2]
    (tmp_path / "index.html").write_text(
        '<p>=== "macOS"</p><p>a === b</p><code>=== "x"</code><pre><code>!!! note</code></pre>'
    )
    assert broken_links(tmp_path) == ["index.html: '=== \"macOS\"' is unprocessed markup"]


def test_command_blocks_and_their_directives(chapter):
    file = chapter("```sh runnable\ntrue\n```\n\n    ```text output\n    a\n      b\n    ```\n")
    first, second = blocks(file)
    assert (first.language, first.words, first.text) == ("sh", {"runnable"}, "true")
    assert (second.words, second.text, second.line) == ({"output"}, "a\n  b", 5)
    (command,) = commands_of(file)
    assert command.output == "a\n  b"


def test_output_needs_a_command(chapter):
    with pytest.raises(BookError, match="without a runnable block"):
        list(commands_of(chapter("```text output\nx\n```\n")))


@pytest.mark.parametrize(
    ("printed", "pattern", "is_match"),
    [
        ("a\nb\n", "a\nb", True),
        ("a\nx\ny\nb", "a\n…\nb", True),
        ("error 1e-7 ok", "error … ok", True),
        ("a\nc", "a\nb", False),
        ("a.c", "a.c", True),
        ("abc", "a.c", False),
    ],
)
def test_output_matches_the_pattern(printed, pattern, is_match):
    assert matches(printed, pattern) == is_match


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```sh runnable\necho wrong >&2; exit 3\n```\n", "exit status 3\nwrong"),
        ("```python runnable\nprint(1)\n```\n```text output\n2\n```\n", "got output\n1\n"),
        ("```ruby runnable\nputs 1\n```\n", "language 'ruby' is not runnable"),
        ("```python runnable\nprint(1)\n```\n```text output\n1\n```\n", None),
    ],
)
def test_failed_command_is_reported_with_its_location(chapter, text, message):
    (command,) = commands_of(chapter(text))
    if message is None:
        run(command)
        return
    with pytest.raises(BookError, match="chapter.md:1: ") as error:
        run(command)
    assert message in str(error.value)


def test_chapters_tests_and_table_list_the_same_tasks():
    tested = tasks_of_tests()
    assert not check_tasks(tested)
    errors = check_tasks(tested - {"1.3.2"})
    assert "task 1.3.2 has no test" in errors
    assert any("-k task_2` runs no test" in error for error in errors)


@pytest.mark.parametrize("heading", ["## Questions to think about", "## Self-check"])
def test_every_question_has_an_answer(heading):
    num_questions = 0
    for chapter in chapters():
        for part in chapter.read_text(encoding="utf-8").split(f"\n{heading}")[1:]:
            section = part.partition("\n## ")[0]
            questions = len(re.findall(r"^\d+\. ", section, re.MULTILINE))
            answers = len(re.findall(r"^    \d+\. ", section, re.MULTILINE))
            assert answers == questions > 0, f"{chapter}: {answers} answers in {heading!r}"
            num_questions += questions
    assert num_questions >= 15
