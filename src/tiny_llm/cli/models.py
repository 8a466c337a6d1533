"""Lists local models: bundled, and of the hub cache, LM Studio and Ollama."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from ..models.checkpoint.safe_io import ModelError
from ..models.checkpoint.tensor_shapes import quantization_of
from ..models.gguf.reader import open_gguf
from ..models.hub import (
    BUNDLED_MODELS,
    find_in_cache,
    is_model_file,
    local_models,
    read_model_config,
    weight_bytes,
)
from ..models.memory import model_size, total_memory
from .parsing.command import CommandParser, run_command


def main(argv: Sequence[str] | None = None, prog: str = "models") -> int:
    return run_command(prog, lambda: _report(make_parser(prog).parse_args(argv).names))


def make_parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, __doc__)
    parser.add_argument("--names", action="store_true", help="print the names only")
    return parser


def available_models() -> Iterator[tuple[str, Callable[[], Path]]]:
    """Yields (value of --model, function that returns the path or raises ModelError)."""
    from huggingface_hub import constants

    for name, folder in BUNDLED_MODELS.items():
        yield name, partial(Path, folder)
    for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*")):
        hub_id = folder.name.removeprefix("models--").replace("--", "/")
        cached = find_in_cache(hub_id)
        if cached is not None:
            yield hub_id, partial(Path, cached)
        for file in sorted(filter(is_model_file, folder.glob("snapshots/*/*.gguf"))):
            yield str(file), partial(Path, file)
    yield from local_models()


def _report(names_only: bool) -> int:
    if names_only:
        print(*(name for name, _ in available_models()), sep="\n")
        return 0
    table = Table("model", "size", "format", "family", "fits in memory")
    for name, find in available_models():
        table.add_row(name, *_columns(find))
    Console(highlight=False, emoji=False).print(table, markup=False)
    return 0


def _columns(find: Callable[[], Path]) -> tuple[str, str, str, str]:
    size = "?"
    try:
        path = find()
        size = decimal(path.stat().st_size if path.is_file() else weight_bytes(path))
        config, needed = read_model_config(path), model_size(path).weight_bytes
        fits = "yes" if needed < total_memory() else f"no: needs {decimal(needed)}"
        return decimal(weight_bytes(path)), _format(path), config["model_type"], fits
    except ModelError as error:
        return size, "", "", f"unsupported: {error}"


def _format(path: Path) -> str:
    if path.is_file():
        sizes: Counter[str] = Counter()
        for tensor in open_gguf(path).tensors.values():
            sizes[tensor.type.name] += tensor.nbytes
        return f"GGUF {sizes.most_common(1)[0][0]}"
    config = read_model_config(path)
    quantization = quantization_of(config) or {}
    dtype = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    return f"MLX {quantization['bits']}-bit" if "bits" in quantization else f"MLX {dtype}"


if __name__ == "__main__":
    sys.exit(main())
