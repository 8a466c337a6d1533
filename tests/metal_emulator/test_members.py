"""Metal 4.1's address space rule for `this`: rejected and accepted code."""

# ruff: noqa: E501 (one function per table row)

import pytest

from .support import findings, needs_clang

pytestmark = needs_clang

FILE = """#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;
struct Point {{ int x, y; }};
inline thread float2& elements(thread simdgroup_float8x8& m) {{
  return reinterpret_cast<thread float2&>(m.thread_elements());
}}
void increase(thread float& x) {{ x += 1; }}
void increase_all(thread float* x) {{ x[0] += 1; }}
template <class T>
struct Object {{
  float value, values[4];
  Point place, places[2];
  float4 four;
  simdgroup_float8x8 matrix, matrices[2];
  device T* memory;
  explicit Object(device T* x) thread {{ memory = x; value = 0; }}
  thread float& in_thread() thread {{ return value; }}
  float anywhere() const {{ return value; }}
{function}
  void unused_member() thread {{}}
}};
kernel void k(device float* x [[buffer(0)]]) {{
  Object<float> object(x);
  object.call();
  x[0] = object.in_thread() + object.anywhere();
}}
"""
LINE = FILE.split("{function}")[0].count("\n") + 1

WRONG = {
    "reference returned": "thread float& at() { return value; } void call() { at(); }",
    "reference passed": "void call() { increase(value); }",
    "reference in a variable": "void call() { thread float& it = values[1]; it = 0; }",
    "pointer to an array": "void call() { increase_all(values); }",
    "address of a member": "void call() { increase_all(&value); }",
    "matrix": "void call() { elements(matrix) = float2(0); }",
    "matrix of an array": "void call() { for (int i = 0; i < 2; i++) { elements(matrices[i]) *= 2; } }",
    "product of matrices": "void call() { simdgroup_multiply_accumulate(matrix, matrix, matrix, matrix); }",
    "call of a function in thread": "void call() { in_thread() = 1; }",
    "const": "void call() const { thread const float& it = value; memory[0] = it; }",
    "template": "template <class U> void add(U x) { increase(value); } void call() { add(1); }",
    "the object itself": "void call() { thread Object& it = *this; it.value = 0; }",
}
RIGHT = {
    "thread": "void call() thread { increase(value); elements(matrix) = float2(0); in_thread() = 1; }",
    "const thread": "void call() const thread { thread const float& it = value; memory[0] = it; }",
    "reading": "void call() { memory[0] = value + values[1] + four.x + four[2] + place.x; }",
    "assigning": "void call() { value = values[1] = 2; four.x += 1; places[1].y++; }",
    "call of a function that reads": "void call() { memory[0] = anywhere(); }",
    "values passed": "void call() { memory[0] = max(value, values[2]); }",
    "copies": "void call() { Point p = place; float4 f = four; memory[0] = p.x + f.x; }",
    "not of the object": "void call() { float x = 1; increase(x); elements_of(); } static void elements_of() {}",
    "device memory": "void call() { device T& it = memory[1]; it = 1; }",
}  # fmt: skip


def findings_of(folder, function):
    path = folder / "k.metal"
    path.write_text(FILE.format(function=function))
    return findings(path)


@pytest.mark.parametrize("name", WRONG)
def test_this_needs_thread_address_space(tmp_path, name):
    found = findings_of(tmp_path, WRONG[name])
    assert {diagnostic.line for diagnostic in found} == {LINE}
    assert all("Metal 4.1" in diagnostic.message for diagnostic in found)
    function = WRONG[name].replace(") {", ") thread {").replace(") const {", ") const thread {")
    assert findings_of(tmp_path, function.replace("2; i++) thread {", "2; i++) {")) == []


@pytest.mark.parametrize("name", RIGHT)
def test_values_are_copied_in_any_address_space(tmp_path, name):
    assert findings_of(tmp_path, RIGHT[name]) == []
