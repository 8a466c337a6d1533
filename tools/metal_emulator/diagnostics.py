"""Translates clang's diagnostics to Metal's terms."""

import re

from .errors import Diagnostic

# Regular expressions for clang's spellings of types and address spaces, and Metal's names.
METAL_TERMS = [
    (r"\b__global\b", "device"),
    (r"\b__local\b", "threadgroup"),
    (r"\bconst __constant\b|\b__constant const\b|\b__constant\b", "constant"),
    (r"\b_Float16\b", "half"),
    (r"\b__bf16\b", "bfloat"),
    (r"\b(\w+) __attribute__\(\(ext_vector_type\((\d)\)\)\)", r"\1\2"),
    (r"\bmetal::|\bmsl::", ""),
    (r"('[^']*') \(aka \1\)", r"\1"),
]
HEADLINE = re.compile(r"^(.+?):(\d+):\d+: (fatal error|error|warning|note): (.*)$")
COPY_HINT = (
    " (if this copies a struct out of device or constant memory: write `T x; x = source;`, "
    "a limitation of the emulator, not of Metal)"
)


def read_diagnostics(output: str, own_folder: str) -> list[Diagnostic]:
    """clang's errors and warnings, without notes.

    An error inside the emulator's own headers (`own_folder`) is reported at the kernel's
    call: the location of the first following note in another file.
    """
    found: list[Diagnostic] = []
    pending: Diagnostic | None = None
    for line in output.splitlines():
        match = HEADLINE.match(line)
        if match is None:
            continue
        file, number, severity, message = (
            match[1],
            int(match[2]),
            match[3],
            _in_metal_terms(match[4]),
        )
        own = file.startswith(own_folder)
        if severity == "note":
            if pending is not None and not own:
                found.append(Diagnostic(file, number, pending.message, pending.severity))
                pending = None
            continue
        if pending is not None:
            found.append(pending)
        pending = None
        finding = _diagnostic(file, number, severity, message)
        if own:
            pending = finding
        else:
            found.append(finding)
    return found + ([pending] if pending is not None else [])


def _diagnostic(file: str, line: int, severity: str, message: str) -> Diagnostic:
    """A diagnostic; for a failed copy of a struct, its message ends with a hint."""
    if "no matching constructor for initialization" in message:
        message += COPY_HINT
    return Diagnostic(file, line, message, "warning" if severity == "warning" else "error")


def _in_metal_terms(message: str) -> str:
    for pattern, word in METAL_TERMS:
        message = re.sub(pattern, word, message)
    return message
