"""Book checks: chapters, figures, links, commands and tasks."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from tools.book import PAGES, ROOT
from tools.book.chapters import chapters
from tools.book.expand import _figures
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
            begin = (
                get("x")
                - {"start": 0, "middle": 0.5, "end": 1}[element.attrib["text-anchor"]] * length
            )
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


def test_chapters_tests_and_table_list_the_same_tasks():
    assert not check_tasks(tasks_of_tests())


@pytest.mark.parametrize("heading", ["## Questions to think about", "## Self-check"])
def test_every_question_has_an_answer(heading):
    num_questions = 0
    for chapter in chapters():
        for part in chapter.read_text(encoding="utf-8").split(f"\n{heading}")[1:]:
            section = part.partition("\n## ")[0]
            questions = re.findall(r"^\d+\. ", section, re.MULTILINE)
            answers = re.findall(r"^    \d+\. ", section, re.MULTILINE)
            assert len(answers) == len(questions) > 0, (
                f"{chapter}: expected an answer to each question of {heading!r}"
            )
            num_questions += len(questions)
    assert num_questions >= 15
