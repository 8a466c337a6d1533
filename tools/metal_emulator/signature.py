"""Kernel signatures: parameter bindings and their validity in Metal."""

import re
from dataclasses import dataclass, field

from . import source
from .errors import Diagnostic

# Attribute of a parameter -> field of msl::Position. Parameters in POSITIONS may be vectors.
POSITIONS = {
    "thread_position_in_grid": "thread_in_grid",
    "threadgroup_position_in_grid": "group_in_grid",
    "thread_position_in_threadgroup": "thread_in_group",
    "threads_per_threadgroup": "group_size",
    "dispatch_threads_per_threadgroup": "nominal_group_size",
    "threads_per_grid": "grid_size",
    "threadgroups_per_grid": "groups_in_grid",
}
SCALAR_POSITIONS = {
    "thread_index_in_threadgroup": "thread_index",
    "simdgroup_index_in_threadgroup": "simdgroup",
    "thread_index_in_simdgroup": "lane",
    "simdgroups_per_threadgroup": "simdgroups",
    "dispatch_simdgroups_per_threadgroup": "simdgroups",
    "threads_per_simdgroup": "simd_width",
    "thread_execution_width": "simd_width",
    "quadgroup_index_in_threadgroup": "quadgroup",
    "thread_index_in_quadgroup": "quad_lane",
}
IGNORED = {"maybe_unused"}
MAX_BUFFER_INDEX = 30
MAX_THREADGROUP_INDEX = 30

ATTRIBUTE = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


@dataclass(frozen=True)
class Parameter:
    """A kernel's parameter.

    `binding` is "BUFFER", "THREADGROUP_MEMORY" or "POSITION"; `index` is the buffer's index or, for
    a position, a C++ expression.
    """

    name: str
    binding: str
    index: str
    constant_space: bool = False
    optional: bool = False


@dataclass
class Signature:
    """Declaration of a kernel function or template."""

    name: str
    parameters: list[Parameter] = field(default_factory=list)
    max_threads: int = 0


@dataclass
class _Reader:
    """Parses one signature and collects its errors."""

    kernel: str
    text: str
    used: set[str] = field(default_factory=set)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def error(self, offset: int, message: str) -> None:
        file, line = source.location(self.text, offset)
        self.diagnostics.append(Diagnostic(file, line, f"kernel {self.kernel}: {message}"))

    def parameter(self, offset: int, declaration: str) -> Parameter:
        """Parses one parameter; errors are located at its first line."""
        offset += len(declaration) - len(declaration.lstrip())
        plain = ATTRIBUTE.sub(" ", declaration).strip()
        match = re.search(r"(\w+)\s*(?:\[\w*\])?$", plain)
        name = match[1] if match else "?"
        constant_space = re.search(r"\bconstant\b", plain) is not None
        optional, result = False, None
        for group in ATTRIBUTE.findall(declaration):
            for _, part in source.split(group):
                attribute = part.strip()
                if attribute in IGNORED:
                    continue
                if attribute.startswith("function_constant"):
                    optional = True
                    continue
                if result is not None:
                    self.error(offset, f"parameter '{name}' has two binding attributes")
                result = self.bind(offset, name, plain, attribute)
        if result is None:
            result = self.bind_lowest_free_buffer(offset, name, plain)
        return Parameter(name, *result, constant_space, optional)

    def bind(self, offset: int, name: str, plain: str, attribute: str) -> tuple[str, str]:
        slot = re.fullmatch(r"(buffer|threadgroup)\s*\(\s*(\d+)\s*\)", attribute)
        key = re.sub(r"\s", "", attribute)
        if key in self.used and (slot or attribute in POSITIONS):
            self.error(offset, f"[[{key}]] of '{name}' is already used by another parameter")
        self.used.add(key)
        if slot:
            self.check_space(offset, name, plain, slot[1], int(slot[2]))
            return ("BUFFER" if slot[1] == "buffer" else "THREADGROUP_MEMORY"), slot[2]
        if attribute in POSITIONS or attribute in SCALAR_POSITIONS:
            scalar = attribute in SCALAR_POSITIONS
            if not re.search(
                r"\b(?:uint|ushort|uint32_t|uint16_t)%s\b" % ("" if scalar else "[23]?"), plain
            ):
                kinds = "ushort or uint" if scalar else "ushort or uint, or a vector of 2 or 3"
                self.error(offset, f"[[{attribute}]] '{name}' must be {kinds}")
            elif re.search(r"[*&]", plain):
                self.error(
                    offset, f"[[{attribute}]] '{name}' must be a value, not a pointer or reference"
                )
            return "POSITION", f"MSL_POSITION({(POSITIONS | SCALAR_POSITIONS)[attribute]})"
        self.error(offset, f"unknown attribute [[{attribute}]] of parameter '{name}'")
        return "POSITION", "0"

    def check_space(self, offset: int, name: str, plain: str, slot: str, index: int) -> None:
        is_address = re.search(r"[*&]|\]\s*$", plain)
        if slot == "buffer":
            if not re.search(r"\b(?:device|constant)\b", plain):
                self.error(
                    offset, f"buffer '{name}' must be in the device or constant address space"
                )
            if index > MAX_BUFFER_INDEX:
                self.error(offset, f"[[buffer({index})]]: the largest index is {MAX_BUFFER_INDEX}")
        elif not re.search(r"\bthreadgroup\b", plain):
            self.error(offset, f"'{name}' must be in the threadgroup address space")
        elif index > MAX_THREADGROUP_INDEX:
            self.error(
                offset, f"[[threadgroup({index})]]: the largest index is {MAX_THREADGROUP_INDEX}"
            )
        if not is_address:
            self.error(offset, f"'{name}' must be a pointer or a reference")

    def bind_lowest_free_buffer(self, offset: int, name: str, plain: str) -> tuple[str, str]:
        """Assigns the lowest free buffer index to a parameter without attribute, as Metal does."""
        if re.search(r"\b(?:device|constant)\b[^&*]*[&*]", plain):
            index = next(i for i in range(64) if f"buffer({i})" not in self.used)
            self.used.add(f"buffer({index})")
            return "BUFFER", str(index)
        self.error(
            offset,
            f"parameter '{name}' has no binding attribute, such as "
            "[[buffer(0)]] or [[thread_position_in_grid]]",
        )
        return "POSITION", "0"


KERNEL = re.compile(
    r"(?:\[\[[^\[\]]*?\bkernel\b[^\[\]]*\]\]|\bkernel\b)\s*(?:\[\[(?:[^\[\]])*\]\]\s*)*void\s+(\w+)\s*\("
)


def read_signatures(text: str) -> tuple[list[tuple[int, Signature]], list[Diagnostic]]:
    """(offset, signature) of each kernel function of preprocessed text, and signature errors."""
    signatures: list[tuple[int, Signature]] = []
    diagnostics: list[Diagnostic] = []
    for match in KERNEL.finditer(text):
        if re.search(r"\btemplate\s*(?:\[\[[^\]]*\]\]\s*)?$", text[: match.start()][-400:]):
            continue  # an explicit instantiation, not a definition
        end = source.closing_bracket(text, match.end() - 1)
        if end < 0:
            continue  # clang reports the unclosed parenthesis
        reader = _Reader(match[1], text)
        signature = Signature(match[1])
        for offset, declaration in source.split(text[match.end() : end - 1]):
            signature.parameters.append(reader.parameter(match.end() + offset, declaration))
        attributes = text[max(0, match.start() - 200) : match.end()]
        limit = re.search(r"max_total_threads_per_threadgroup\s*\(\s*(\d+)\s*\)", match[0])
        limit = limit or re.search(
            r"max_total_threads_per_threadgroup\s*\(\s*(\d+)\s*\)\s*\]\]\s*$",
            attributes[: len(attributes) - len(match[0])],
        )
        signature.max_threads = int(limit[1]) if limit else 0
        signatures.append((match.start(), signature))
        diagnostics += reader.diagnostics
    return signatures, diagnostics
