"""What the emulator finds: errors in a file that does not compile, faults of a launch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnostic:
    """One finding of the type check, at a line of the .metal file (or of a header of it)."""

    file: str
    line: int
    message: str
    severity: str = "error"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.severity}: {self.message}"


class MetalError(Exception):
    """A file that is not valid Metal, or that the emulator cannot run.

    `diagnostics` has the findings in the order of the file; the message lists them.
    """

    def __init__(self, diagnostics: list[Diagnostic]):
        self.diagnostics = diagnostics
        super().__init__("\n".join(map(str, diagnostics)))


class ToolMissingError(Exception):
    """The emulator cannot work on this machine; the message says what to install."""


# What to do about each kind of fault.
ADVICE = {
    "divergent-barrier": "Every thread of a threadgroup must reach the same barrier: no barrier in "
    "a branch, a loop or after a return that only some threads take.",
    "divergent-simd": "All lanes of a simdgroup must reach the same simd operation together: move "
    "it out of the branch, and give the lanes without data a neutral value.",
    "inactive-lane": "Let all lanes take part, or read only from lanes that do.",
    "race": "Put a barrier between the two, or let only one thread touch the memory.",
    "missing-fence": "Name the memory in the barrier's flags: mem_flags::mem_device, "
    "mem_flags::mem_threadgroup, or both.",
    "uninitialised-threadgroup-read": "Threadgroup memory starts with arbitrary values: write it "
    "first, and put a barrier between the write and the read.",
    "out-of-bounds": "Check the index against the size before the access.",
    "threadgroup-memory-limit": "Use smaller tiles, a smaller type, or one array after the other.",
    "too-many-threads": "Use more threadgroups with fewer threads each.",
    "stack-overflow": "A thread's variables live in registers: use smaller arrays.",
    "timeout": "Look for a loop that does not end.",
}


class MetalFault(Exception):  # noqa: N818 – a fault of the kernel, the field's word for it
    """Something that a launch did and must not do.

    `kind` is a short name (the keys of `ADVICE`, "wrong-argument", "division-by-zero", "crash"),
    `file` and `line` are the place in the source, `kernel` is the kernel's name.
    """

    def __init__(self, kind: str, kernel: str, message: str, file: str = "", line: int = 0):
        self.kind, self.kernel, self.message = kind, kernel, message
        self.file, self.line = file, line
        place = f"{file}:{line}: " if file else ""
        advice = f"\n  {ADVICE[kind]}" if kind in ADVICE else ""
        super().__init__(f"{place}{kind} in {kernel}: {message}.{advice}")


FAULTS_SHOWN = 5


class UnreportedFaultError(Exception):
    """Faults on an emulated GPU that somebody caught; `faults` has a sentence for each."""

    def __init__(self, faults: list[str]):
        self.faults = faults
        shown = "\n".join(faults[:FAULTS_SHOWN])
        count = f"{len(faults)} of them" if len(faults) > 1 else "one"
        super().__init__(f"faults on the emulated GPU ({count}), whoever caught them:\n{shown}")
