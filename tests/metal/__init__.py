"""Metal kernels, run in the emulator."""
