"""`pdm run check-mac` detects seeded compile, link and load errors.

These tests build a small module instead of the extension; CI runs the command on the extension.
"""

import sys

import pytest

pytest.importorskip("macholib", reason="needs macholib, which `./pdmw run check-mac` installs")
pytest.importorskip("ziglang", reason="needs ziglang, which `./pdmw run check-mac` installs")

from tools.check_mac.__main__ import WORK
from tools.check_mac.build import build
from tools.check_mac.link import translate
from tools.check_mac.module import RPATH, compare_with_objects, describe, find_defects
from tools.check_mac.wheel import macos_wheel

CMAKE = """\
cmake_minimum_required(VERSION 3.25)
project(tiny LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 20)
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
find_package(MLX CONFIG REQUIRED)
add_library(kernels_neon OBJECT kernel.cpp)
add_library(_ext MODULE module.cpp KERNELS)
target_include_directories(_ext PRIVATE ${Python_INCLUDE_DIRS})
target_link_options(_ext PRIVATE LINK_OPTIONS)
target_link_libraries(_ext PRIVATE mlx)
target_compile_options(_ext PRIVATE -Wall)
set_target_properties(_ext PROPERTIES PREFIX "" SUFFIX .${SKBUILD_SOABI}.so
  CXX_VISIBILITY_PRESET hidden BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "RUN_PATH")
"""
KERNEL = "namespace tiny_llm_ext::neon { int kernel(int x) { return x + 1; } }\n"
MODULE = """\
#include <Python.h>
#include "mlx/mlx.h"
#include "mlx/backend/metal/device.h"
namespace tiny_llm_ext::neon { int kernel(int x); }
namespace mlx::core { void no_such_function(); }
extern "C" void PyNoSuchFunction();
extern "C" void no_such_system_function();
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_ext", nullptr, 0};
PyMODINIT_FUNC PyInit__ext() {
    mlx::core::eval(mlx::core::ones({1}));
    mlx::core::metal::device(mlx::core::Device::gpu).get_library("name", [] { return ""; });
    FAULT;
    return PyModule_Create(&definition);
}
"""
OBJECTS = "$<TARGET_OBJECTS:kernels_neon>"
CALL = "tiny_llm_ext::neon::kernel(1)"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "darwin", reason="cross-compilation is not needed on a Mac"),
]


@pytest.fixture
def build_module(tmp_path):
    """Returns a function that builds a module around a C++ statement.

    The function returns (module, or None if the build failed; build output; object files).
    """
    wheel = macos_wheel(WORK)
    if wheel is None:
        pytest.skip("MLX's macOS wheel could not be downloaded")

    def run(statement, *link, run_path=RPATH, kernels=OBJECTS, kernel=KERNEL):
        text = CMAKE.replace("RUN_PATH", run_path).replace("KERNELS", kernels)
        text = text.replace("LINK_OPTIONS", " ".join(link))
        (tmp_path / "CMakeLists.txt").write_text(text)
        (tmp_path / "kernel.cpp").write_text(kernel)
        (tmp_path / "module.cpp").write_text(MODULE.replace("FAULT", statement))
        module, output = build(tmp_path, tmp_path / "work", wheel)
        objects = tmp_path / "work/objects/CMakeFiles/kernels_neon.dir"
        return module, output, sorted(objects.rglob("*.o"))

    return run


def test_valid_module_has_no_problems(build_module):
    module, output, objects = build_module(CALL)
    assert module is not None, output
    assert find_defects(module) == []
    assert compare_with_objects(module, objects) == []
    assert "1 NEON kernels, @rpath/libmlx.dylib in @loader_path/../mlx/lib" in describe(module)


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("mlx::core::no_such_function()", "no_such_function"),
        ("PyNoSuchFunction()", "_PyNoSuchFunction"),
        ("no_such_system_function()", "_no_such_system_function"),
    ],
    ids=["mlx", "python", "system"],
)
def test_undefined_symbol_is_an_error(build_module, statement, name):
    module, output, _ = build_module(f"{CALL}; {statement}")
    assert module is None
    assert "undefined symbol" in output
    assert name in output


def test_unresolved_symbol_is_an_error(build_module):
    statement = f"{CALL}; PyNoSuchFunction()"
    module, output, _ = build_module(statement, "LINKER:-undefined,dynamic_lookup")
    assert module is not None, output
    assert find_defects(module) == ["_PyNoSuchFunction is undefined in all libraries"]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("long long x = 1; int64_t* y = &x; long* z = &x; (void)y; (void)z", "'long *'"),
        ("int unused", "unused variable 'unused'"),
    ],
    ids=["int64_t is long long on macOS", "warning as error"],
)
def test_macos_compile_error_is_reported(build_module, statement, words):
    module, output, _ = build_module(f"{CALL}; {statement}")
    assert module is None
    assert words in output


def test_wrong_mlx_rpath_is_an_error(build_module):
    module, output, _ = build_module(CALL, run_path="$ORIGIN/../mlx/lib")
    assert module is not None, output
    (problem,) = find_defects(module)
    assert "searches for MLX in" in problem
    assert "[@loader_path/../mlx/lib]" in problem


def test_missing_kernels_are_an_error(build_module):
    module, output, objects = build_module("", kernels="")
    assert module is not None, output
    # CMake does not build the kernel, because the module does not reference it.
    assert compare_with_objects(module, objects) == ["no file was compiled for NEON"]
    module, output, objects = build_module("", kernel="int kernel;\n")
    assert module is not None, output
    assert compare_with_objects(module, objects) == ["kernel.cpp has no kernel for NEON"]


def test_apple_linker_flags():
    command = ["zig", "c++", "-bundle", "-Wl,-dead_strip", "-Wl,@names.sym", "-Wl,-x", "-o", "m.so"]
    assert translate(command) == ["zig", "c++", "-shared", "-Wl,-dead_strip", "-o", "m.so"]
