"""The emulator's errors: compilation diagnostics and launch faults."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnostic:
    """A diagnostic of the type check, at a line of the .metal file or one of its headers."""

    file: str
    line: int
    message: str
    severity: str = "error"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.severity}: {self.message}"


class MetalError(Exception):
    """Invalid Metal, or Metal that the emulator does not support.

    `diagnostics` are the errors in file order; the message lists them.
    """

    def __init__(self, diagnostics: list[Diagnostic]):
        self.diagnostics = diagnostics
        super().__init__("\n".join(map(str, diagnostics)))


class ToolMissingError(Exception):
    """A required tool is missing; the message has installation instructions."""


# Advice for each kind of fault.
ADVICE = {
    "divergent-barrier": "Every thread of a threadgroup must reach the same barrier: no barrier in "
    "a branch, a loop or after a return that only some threads take.",
    "divergent-simd": "All lanes of a simdgroup must reach the same simd operation together: move "
    "it out of the branch, and give the lanes without data a neutral value.",
    "inactive-lane": "Let all lanes participate, or read only from lanes that do.",
    "race": "Put a barrier between the two, or let only one thread access the memory.",
    "missing-fence": "Include the memory in the barrier's flags: mem_flags::mem_device, "
    "mem_flags::mem_threadgroup, or both.",
    "uninitialised-threadgroup-read": "Threadgroup memory starts with arbitrary values: write it "
    "first, and put a barrier between the write and the read.",
    "out-of-bounds": "Check the index against the size before the access.",
    "threadgroup-memory-limit": "Use smaller tiles, a smaller type, or reuse one array.",
    "too-many-threads": "Use more threadgroups with fewer threads each.",
    "stack-overflow": "A thread's variables live in registers: use smaller arrays.",
    "timeout": "Look for an infinite loop.",
}


class MetalFault(Exception):  # noqa: N818 – a fault of the kernel
    """A fault of a launch.

    `kind` is a key of `ADVICE`, "wrong-argument", "hazard", "division-by-zero", "trap" or "crash";
    `file` and `line` are the source location, `kernel` is the kernel's name.
    """

    def __init__(self, kind: str, kernel: str, message: str, file: str = "", line: int = 0):
        self.kind, self.kernel, self.message = kind, kernel, message
        self.file, self.line = file, line
        location = f"{file}:{line}: " if file else ""
        advice = f"\n  {ADVICE[kind]}" if kind in ADVICE else ""
        super().__init__(f"{location}{kind} in {kernel}: {message}.{advice}")


FAULTS_SHOWN = 5


class UnreportedFaultError(Exception):
    """Faults on an emulated GPU whose exceptions were caught; `faults` has a sentence per fault."""

    def __init__(self, faults: list[str]):
        self.faults = faults
        shown = "\n".join(faults[:FAULTS_SHOWN])
        count = f"{len(faults)} of them" if len(faults) > 1 else "one"
        super().__init__(
            f"faults on the emulated GPU ({count}), whose exceptions were caught:\n{shown}"
        )
