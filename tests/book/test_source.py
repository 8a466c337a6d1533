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
def python_file(tmp_path):
    file = tmp_path / "shapes.py"
    file.write_text(PYTHON)
    return file


@pytest.fixture
def cpp_file(tmp_path):
    file = tmp_path / "half.cpp"
    file.write_text(CPP)
    return file


def test_function_excerpt_has_no_markers(python_file):
    excerpt = extract_snippet(python_file, "function", "double")
    assert excerpt.text.splitlines()[0] == "def double("
    assert excerpt.text.endswith("    return y")
    assert "task" not in excerpt.text
    assert excerpt.first_line == 1 + PYTHON.splitlines().index("def double(")
    assert excerpt.language == "python"


def test_method_is_dedented_and_keeps_its_decorator(python_file):
    assert extract_snippet(python_file, "function", "Circle.area").text.startswith(
        "@property\ndef area"
    )


def test_signature_hides_the_solution(python_file):
    excerpt = extract_snippet(python_file, "signature", "double").text
    assert excerpt == 'def double(\n    x,\n):\n    """Twice x."""\n    ...'
    excerpt = extract_snippet(python_file, "signature", "Circle").text
    assert '"""A circle."""' in excerpt
    assert "def area(self):" in excerpt
    assert "math.pi" not in excerpt
    assert "_hidden" not in excerpt


def test_solution_only_markers_are_not_shown(python_file):
    assert "solution only" not in extract_snippet(python_file, "function", "Circle._hidden").text


def test_task_excerpt(python_file):
    assert extract_snippet(python_file, "task", "1.1.1 double").text == "y = x + x\nreturn y"
    assert (
        extract_snippet(python_file, "task", "1.1.1 area").text == "return math.pi * self.radius**2"
    )


def test_headers(python_file, cpp_file):
    assert extract_snippet(python_file, "header").text == "What the file is for.\n\nMore of it."
    assert extract_snippet(cpp_file, "header").text == "What the file is for.\n\n    a formula"


def test_cpp_function_includes_its_comment(cpp_file):
    excerpt = extract_snippet(cpp_file, "function", "half").text
    assert excerpt.startswith("// Half of x.\ntemplate <typename T>\nT half(T x) {")
    assert excerpt.endswith("    return x / 2;\n}")
    assert extract_snippet(cpp_file, "signature", "half").text.endswith("T half(T x) { … }")
    assert (
        extract_snippet(cpp_file, "function", "use").text
        == "float use(float x) { return half(x); }"
    )


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("function", "triple", "no function or class triple"),
        ("function", "Circle.diameter", "no function or class Circle.diameter"),
        ("task", "1.1.1", r"no marker \[task 1.1.1\]"),
        ("paragraph", "", "unknown kind 'paragraph'"),
    ],
)
def test_unknown_name_is_an_error(python_file, kind, name, message):
    with pytest.raises(BookError, match=message):
        extract_snippet(python_file, kind, name)


def test_unclosed_task_is_an_error(tmp_path):
    file = tmp_path / "open.py"
    file.write_text("# [task 1.1.1]\nx = 1\n")
    with pytest.raises(BookError, match=r"has no \[/task 1.1.1\]"):
        extract_snippet(file, "task", "1.1.1")


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(BookError, match="does not exist"):
        extract_snippet(tmp_path / "none.py", "file")
