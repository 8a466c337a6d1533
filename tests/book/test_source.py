"""Source excerpts for book includes."""

import pytest

from tools.book import BookError
from tools.book.source import extract_snippet

PYTHON = '''"""What the file is for.

More of it.
"""

import math


class Circle:
    """A circle."""

    def __init__(self, radius):
        self.radius = radius

    @property
    def area(self):
        """Its area."""
        # [task 1.1.1 area]
        return math.pi * self.radius**2
        # [/task 1.1.1 area]

    def _hidden(self):
        # [solution only]
        return 1
        # [/solution only]


def double(
    x,
):
    """Twice x."""
    # [task 1.1.1 double]
    y = x + x
    return y
    # [/task 1.1.1 double]
'''

CPP = """// What the file is for.
//
//     a formula
#include <cmath>

namespace {

// Half of x.
template <typename T>
T half(T x) {
    if (x > 0) {
        return x / 2;
    }
    return x / 2;
}

float use(float x) { return half(x); }

}  // namespace
"""


@pytest.fixture
def snippet(tmp_path):
    """Returns a function that extracts a snippet from `PYTHON` or `CPP`."""
    for name, text in (("shapes.py", PYTHON), ("half.cpp", CPP)):
        (tmp_path / name).write_text(text)

    def extract(kind, name="", file="shapes.py"):
        return extract_snippet(tmp_path / file, kind, name)

    return extract


def test_function_excerpt_has_no_markers(snippet):
    excerpt = snippet("function", "double")
    assert excerpt.text.splitlines()[0] == "def double("
    assert excerpt.text.endswith("    return y")
    assert "task" not in excerpt.text
    assert excerpt.first_line == 1 + PYTHON.splitlines().index("def double(")
    assert excerpt.language == "python"
    assert "solution only" not in snippet("function", "Circle._hidden").text


def test_method_is_dedented_and_keeps_its_decorator(snippet):
    assert snippet("function", "Circle.area").text.startswith("@property\ndef area")


def test_signature_hides_the_solution(snippet):
    excerpt = snippet("signature", "double").text
    assert excerpt == 'def double(\n    x,\n):\n    """Twice x."""\n    ...'
    excerpt = snippet("signature", "Circle").text
    assert '"""A circle."""' in excerpt
    assert "def area(self):" in excerpt
    assert "math.pi" not in excerpt
    assert "_hidden" not in excerpt


def test_task_excerpt(snippet):
    assert snippet("task", "1.1.1 double").text == "y = x + x\nreturn y"
    assert snippet("task", "1.1.1 area").text == "return math.pi * self.radius**2"


def test_headers(snippet):
    assert snippet("header").text == "What the file is for.\n\nMore of it."
    assert snippet("header", file="half.cpp").text == "What the file is for.\n\n    a formula"


def test_cpp_function_includes_its_comment(snippet):
    excerpt = snippet("function", "half", "half.cpp").text
    assert excerpt.startswith("// Half of x.\ntemplate <typename T>\nT half(T x) {")
    assert excerpt.endswith("    return x / 2;\n}")
    assert snippet("signature", "half", "half.cpp").text.endswith("T half(T x) { … }")
    use = snippet("function", "use", "half.cpp").text
    assert use == "float use(float x) { return half(x); }"


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("function", "triple", "no function or class triple"),
        ("function", "Circle.diameter", "no function or class Circle.diameter"),
        ("task", "1.1.1", r"no marker \[task 1.1.1\]"),
        ("paragraph", "", "unknown kind 'paragraph'"),
    ],
)
def test_unknown_name_is_an_error(snippet, tmp_path, kind, name, message):
    with pytest.raises(BookError, match=message):
        snippet(kind, name)
    with pytest.raises(BookError, match="does not exist"):
        snippet(kind, name, "none.py")
    (tmp_path / "open.py").write_text("# [task 1.1.1]\nx = 1\n")
    with pytest.raises(BookError, match=r"has no \[/task 1.1.1\]"):
        snippet("task", "1.1.1", "open.py")
