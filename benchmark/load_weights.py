"""Times loading a checkpoint's weights, or copying its bytes.

    python -m benchmark.load_weights FOLDER [--copy]

`benchmark.startup` runs each measurement in a new process, since a process that has already used
memory allocates faster.
"""

import mmap
import time
from pathlib import Path
from typing import Any

from mlx.utils import tree_flatten
from rich.console import Console

from tiny_llm import kernels
from tiny_llm.models.checkpoint.layout import weight_files
from tiny_llm.models.checkpoint.safe_io import read_json
from tiny_llm.models.checkpoint.weights import read_checkpoint
from tiny_llm.models.loading import evaluate

from .command import benchmark_parser, print_json
from .systems.worker import peak_bytes, resident_bytes


def main() -> None:
    """Runs the command; prints the figures as JSON."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--copy", action="store_true", help="copy the files without loading them")
    arguments = parser.parse_args()
    measure = copy_files if arguments.copy else load
    print_json(measure(arguments.folder))


def load(folder: Path) -> dict[str, float]:
    """Load time in seconds; size of the weights and growth of peak resident memory in bytes."""
    kernels.extension()  # imported before the timer starts
    before = resident_bytes()
    start = time.perf_counter()
    model = read_checkpoint(folder, read_json(folder, "config.json"))
    evaluate(model, Console(stderr=True))
    seconds = time.perf_counter() - start
    peak = peak_bytes()
    arrays: Any = tree_flatten(model.parameters())
    n_bytes = sum(array.nbytes for _, array in arrays)
    return {"seconds": seconds, "bytes": n_bytes, "peak_bytes": peak - before}


def copy_files(folder: Path) -> dict[str, float]:
    """Seconds to read the files into new memory, single-threaded, and their size in bytes."""
    files = weight_files(folder)
    start = time.perf_counter()
    copies = [read_file(file) for file in files]
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "bytes": sum(map(len, copies))}


def read_file(file: Path) -> mmap.mmap:
    """Reads a file into newly allocated memory."""
    size = file.stat().st_size
    memory = mmap.mmap(-1, size)
    with memoryview(memory) as view, open(file, "rb", buffering=0) as source:
        done = 0
        while done < size:
            done += source.readinto(view[done:])
    return memory


if __name__ == "__main__":
    main()
