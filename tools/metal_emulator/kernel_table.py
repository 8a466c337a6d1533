"""Generates the C++ table of a library's kernels: see msl/kernel_table.h."""

from .rewrite import KernelFunction

KERNEL_TABLE = "kernel_table"  # file name of the table in diagnostics


def kernel_table(kernels: list[KernelFunction]) -> str:
    """Returns the C++ table, to be appended to the rewritten kernels."""
    lines = [f'\n# 1 "{KERNEL_TABLE}"']
    entries = []
    for i, kernel in enumerate(kernels):
        parameters = [
            f'{{"{p.name}", msl::Binding::{p.binding}, {p.index}, '
            f"{str(p.constant_space).lower()}, {str(p.optional).lower()}}}"
            for p in kernel.signature.parameters
        ]
        declared = ", ".join(parameters) or "{}"
        lines.append(f"static constexpr msl::Declared msl_declared_{i}[] = {{{declared}}};")
        lines.append(f"typedef msl::Entry<&{kernel.function}, msl_declared_{i}> msl_entry_{i};")
        entries.append(
            f'{{"{kernel.host_name}", msl_entry_{i}::call, msl_entry_{i}::parameters.all, '
            f"{len(parameters)}, {kernel.signature.max_threads}}},"
        )
    lines += ["extern const msl::Kernel msl_kernels[] = {", *entries, "{}};"]
    lines.append(f"extern const uint32_t msl_kernel_count = {len(kernels)};")
    return "\n".join(lines) + "\n"
