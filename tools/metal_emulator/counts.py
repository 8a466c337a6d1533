"""Operation and memory counts of a launch."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Counts:
    """Operations and bytes of one launch, over all threads; README.md defines each count.

    Bytes "read" and "written" are requested by the threads; "unique" counts each byte once.
    """

    threads: int
    device_bytes_read: int
    device_bytes_written: int
    unique_device_bytes_read: int
    unique_device_bytes_written: int
    constant_bytes_read: int
    threadgroup_bytes_read: int
    threadgroup_bytes_written: int
    simd_operations: int
    barriers: int
    simdgroup_matrix_multiply_adds: int
    multiply_adds: int
    integer_multiplies: int
    integer_divisions: int
    integer_operations: int
    conversions: int
    device_accesses: int
    constant_accesses: int
    threadgroup_accesses: int
    device_bytes_read_by_buffer: dict[int, int]
    unique_device_bytes_read_by_buffer: dict[int, int]
    device_bytes_written_by_buffer: dict[int, int]

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory read and written."""
        return self.device_bytes_read + self.device_bytes_written

    @property
    def unique_device_bytes(self) -> int:
        """Bytes of device memory read and written, counting each byte once."""
        return self.unique_device_bytes_read + self.unique_device_bytes_written

    @property
    def threadgroup_bytes(self) -> int:
        """Bytes of threadgroup memory read and written."""
        return self.threadgroup_bytes_read + self.threadgroup_bytes_written

    @property
    def accesses(self) -> int:
        """Number of loads and stores of device and threadgroup memory."""
        return self.device_accesses + self.threadgroup_accesses

    @property
    def all_integer_operations(self) -> int:
        """Integer operations, including multiplications and divisions."""
        return self.integer_operations + self.integer_multiplies + self.integer_divisions

    def __str__(self) -> str:
        width = max(len(field.name) for field in fields(self))
        lines = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int):
                lines.append(f"{field.name.replace('_', ' '):{width}}  {value:>15,}")
        return "\n".join(lines)


def read_counts(lines: list[list[str]]) -> Counts | None:
    """Parses the counts in a launch's output lines; None unless the mode was "count"."""
    totals: dict[str, int] = {}
    buffers: dict[str, dict[int, int]] = {}
    for line in lines:
        if line[0] == "counts":
            totals = {name: int(value) for name, value in (part.split("=") for part in line[1:])}
        elif line[0] == "buffer":
            for part in line[2:]:
                name, value = part.split("=")
                buffers.setdefault(name, {})[int(line[1])] = int(value)
    if not totals:
        return None
    by_buffer = {
        "device_bytes_read_by_buffer": buffers.get("read", {}),
        "unique_device_bytes_read_by_buffer": buffers.get("unique_read", {}),
        "device_bytes_written_by_buffer": buffers.get("written", {}),
    }
    return Counts(**totals, **by_buffer)  # type: ignore[arg-type]
