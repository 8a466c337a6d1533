"""Type errors seeded into valid Metal source are reported at their line."""

# ruff: noqa: E501 (one error per table row)

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from .support import findings, needs_clang

pytestmark = needs_clang

RIGHT = """#include <metal_stdlib>
using namespace metal;
struct Pair { float a; int b; };
constant constexpr int EIGHT = 8; // GLOBAL
namespace sizes { constant const float TABLE[2] = {1, 2}; } // NAMESPACE
struct Sizes { static constant constexpr int LANES = 32; enum { COLUMNS = 4 }; }; // MEMBER
template <class T> T halved(T x) { T half_of = T(0.5f); return x * half_of; } // TEMPLATE
kernel void right(
    device const float* x [[buffer(0)]], // X
    device bfloat* y [[buffer(1)]], // Y
    constant Pair& pair [[buffer(2)]], // PAIR
    threadgroup float* shared [[threadgroup(0)]], // SHARED
    uint3 at [[thread_position_in_grid]], // AT
    uint lane [[thread_index_in_simdgroup]]) { // LANE
  threadgroup float tile[8][8]; // TILE
  constexpr int eight = Sizes::LANES / Sizes::COLUMNS; // LOCAL
  const float value = x[at.x]; // VALUE
  tile[lane % 8][0] = value * pair.a; // STORE
  threadgroup_barrier(mem_flags::mem_threadgroup); // BARRIER
  simdgroup_float8x8 matrix; // MATRIX
  simdgroup_load(matrix, &tile[0][0], 8); // LOAD
  shared[lane] = simd_sum(tile[0][lane % 8]); // SUM
  y[at.x] = halved(bfloat(shared[0])); // RESULT
}
"""

# Test id: (label of the changed line, original text, replacement, part of the message).
ERRORS = {
    "float to bfloat": ("RESULT", "halved(bfloat(shared[0]))", "shared[0]", "to bfloat implicitly"),
    "float literal to bfloat": ("RESULT", "halved(bfloat(shared[0]))", "1.5f", "to bfloat implicitly"),
    "half to bfloat": ("RESULT", "halved(bfloat(shared[0]))", "half(1)", "incompatible type 'half'"),
    "float literal in a template": ("TEMPLATE", "T(0.5f)", "0.5f", "float to bfloat implicitly"),
    "bfloat to half": ("VALUE", "const float value", "half h = y[0]; const float value",
        "'half' with an lvalue of type 'device bfloat'"),
    "write to const buffer": ("VALUE", "const float value = x[at.x];", "const float value = x[0] = 1;",
        "read-only"),
    "write to constant": ("STORE", "tile[lane % 8][0] =", "pair.a =", "read-only|const|constant"),
    "device pointer to threadgroup pointer": ("VALUE", "const float value",
        "threadgroup float* p = y; const float value", "'device|threadgroup|incompatible|cannot init"),
    "threadgroup pointer to device pointer": ("STORE", "tile[lane % 8][0]",
        "device float* p = shared; tile[lane % 8][0]", "changes address space|cannot initialize"),
    "constant pointer to device pointer": ("STORE", "tile[lane % 8][0]",
        "device const Pair* p = &pair; tile[lane % 8][0]", "changes address space|cannot initialize"),
    "local pointer to device pointer": ("STORE", "tile[lane % 8][0]",
        "device const float* p = &value; tile[lane % 8][0]", "changes address space|cannot initialize"),
    "buffer without address space": ("X", "device const float*", "const float*", "device or constant"),
    "buffer in threadgroup memory": ("X", "device const float*", "threadgroup float*",
        "device or constant"),
    "threadgroup memory in device": ("SHARED", "threadgroup float*", "device float*",
        "threadgroup address space"),
    "buffer by value": ("X", "device const float* x", "device const float x", "pointer or a reference"),
    "duplicate buffer index": ("Y", "buffer(1)", "buffer(0)", "used by another parameter"),
    "buffer index too large": ("Y", "buffer(1)", "buffer(31)", "largest index is 30"),
    "missing attribute": ("LANE", "[[thread_index_in_simdgroup]]", "", "has no binding attribute"),
    "unknown attribute": ("AT", "thread_position_in_grid", "thread_position_in_block",
        "unknown attribute"),
    "signed position attribute": ("AT", "uint3", "int3", "must be ushort or uint"),
    "vector for a scalar attribute": ("LANE", "uint lane", "uint2 lane", "must be ushort or uint"),
    "double": ("VALUE", "const float value", "const double value", "no 'double'"),
    "new": ("VALUE", "const float value", "float* q = new float[2]; const float value", "no 'new'"),
    "goto": ("VALUE", "const float value", "goto end; const float value", "no 'goto'"),
    "constexpr outside of functions": ("GLOBAL", "constant constexpr", "constexpr",
        "'EIGHT' has no address space"),
    "variable outside of functions": ("GLOBAL", "constant constexpr", "", "'EIGHT' has no address"),
    "constant table in a namespace": ("NAMESPACE", "constant const", "const", "'TABLE' has no addr"),
    "static member": ("MEMBER", "static constant", "static", "'LANES' has no address space"),
    "variable template": ("GLOBAL", "constant constexpr int EIGHT",
        "template <int N> constexpr int TWICE = 2 * N; constant constexpr int EIGHT", "'TWICE' has no"),
    "static variable of a function": ("VALUE", "const float value",
        "static constexpr int many = 3; const float value", "'many' has no address space"),
    "undeclared name": ("STORE", "value * pair.a", "valu * pair.a", "undeclared identifier 'valu'"),
    "unknown member": ("STORE", "pair.a", "pair.c", "no member named 'c'"),
    "unknown function": ("SUM", "simd_sum", "simd_total", "undeclared identifier 'simd_total'"),
    "max of different types": ("STORE", "value * pair.a", "max(value, half(1))", "ambiguous"),
    "simd_sum of bfloat": ("SUM", "simd_sum(tile[0][lane % 8])", "float(simd_sum(y[0]))",
        "no matching function"),
    "matrix load from the wrong type": ("LOAD", "&tile[0][0]", "y", "no matching function"),
    "matrix of integers": ("MATRIX", "simdgroup_float8x8", "simdgroup_matrix<int, 8, 8> other; "
        "simdgroup_float8x8", "float, half or bfloat"),
    "matrix of another size": ("MATRIX", "simdgroup_float8x8", "simdgroup_matrix<float, 4, 4> other; "
        "simdgroup_float8x8", "8 rows"),
    "barrier without flags": ("BARRIER", "mem_flags::mem_threadgroup", "", "no matching function"),
    "vector of too many components": ("VALUE", "const float value", "float2 v = float2(1, 2, 3); "
        "const float value", "one per component"),
    "swizzle that is not there": ("VALUE", "x[at.x]", "x[at.w]", "vector component"),
    "as_type of another size": ("VALUE", "x[at.x]", "as_type<half>(x[at.x])", "types of equal size"),
    "threadgroup variable with a value": ("TILE", "tile[8][8]", "tile[8][8], one = 1",
        "initializer|odd"),
    "missing semicolon": ("STORE", "pair.a;", "pair.a", "expected ';'"),
    "too many arguments": ("VALUE", "x[at.x]", "exp(x[at.x], 2)", "no matching function"),
    "pointer arithmetic across address spaces": ("STORE", "value * pair.a", "(x - shared)",
        "address space|invalid operands|incompatible"),
}  # fmt: skip


def with_type_error(line, old, new):
    changed = []
    for text in RIGHT.splitlines():
        if text.endswith(f"// {line}"):
            assert old in text
            text = text.replace(old, new)
        changed.append(text)
    return "\n".join(changed) + "\n"


@pytest.fixture(scope="module")
def all_findings(tmp_path_factory):
    """Errors reported for each entry of ERRORS; checks run two at a time."""
    folder = tmp_path_factory.mktemp("errors")
    paths = {}
    for i, (name, (line, old, new, _)) in enumerate(ERRORS.items()):
        paths[name] = folder / f"error_{i}.metal"
        paths[name].write_text(with_type_error(line, old, new))
    (folder / "right.metal").write_text(RIGHT)
    assert findings(folder / "right.metal") == []
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(paths, pool.map(findings, paths.values()), strict=True))


@pytest.mark.parametrize("name", ERRORS)
def test_type_error_is_reported_at_its_line(all_findings, name):
    line, _, _, says = ERRORS[name]
    number = next(i for i, text in enumerate(RIGHT.splitlines(), 1) if text.endswith(f"// {line}"))
    found = all_findings[name]
    at_line = [d for d in found if d.line == number and re.search(says, d.message)]
    assert at_line, "\n".join(map(str, found)) or "expected an error report"
    assert at_line[0].file.endswith(".metal")


def test_errors_in_headers(tmp_path):
    path, header = tmp_path / "scale.metal", tmp_path / "scale.h"
    path.write_text('// nothing\n#include "scale.h"\nkernel void k() { scale(1); }\n')
    (missing,) = findings(path)
    assert missing.line == 2
    assert "scale.h" in missing.message
    header.write_text("inline float scale(float x) {\n  return x * factor;\n}\n")
    (found,) = findings(path)
    assert (found.file, found.line) == (str(header), 2)
