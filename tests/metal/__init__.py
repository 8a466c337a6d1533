"""Metal kernels on the emulator or a GPU."""
