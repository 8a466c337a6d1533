"""ik_llama.cpp's worker: failures of `llama-bench`."""

import pytest

from benchmark.systems.ik_llama_cpp_worker import IkLlamaCpp


def test_failure_without_output_names_the_exit_status(tmp_path):
    binary = tmp_path / "llama-bench"
    binary.write_text("#!/bin/sh\nexit 3\n")
    binary.chmod(0o755)
    with pytest.raises(RuntimeError, match="llama-bench: exit status 3"):
        IkLlamaCpp(tmp_path / "model.gguf", str(binary), 4.5)
