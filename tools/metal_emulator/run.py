r"""`pdm run metal-run`: runs a Metal kernel on the CPU and prints its outputs.

    pdm run metal-run axpby_float32 \
        --buffer float:1024:random --buffer float:1024:arange --buffer float:1024:zeros \
        --buffer 2.0 --buffer 3.0 --buffer 1024 --grid-threads 1024 --threads 256
    pdm run metal-run my_kernel --file my.metal --buffer x.npy --buffer float:7:zeros \
        --grid 7 --threads 128 --mode race
    pdm run metal-run my_kernel --file my.metal … --mode count

--mode race reports data races; --mode count prints the operations and bytes of a launch.

--buffer is given once per [[buffer(i)]], in order:
    TYPE:SIZE:FILL    SIZE is a shape such as 7x333; FILL is random, zeros, ones or arange
    FILE.npy          an array saved with `numpy.save`
    TYPE:N,N,N        a struct with these members, all of the same type
    NUMBER            a scalar of the parameter's type
    -                 unbound
TYPE is float, half, bfloat, bool or an integer such as int, uint, uchar, long.
"""

import argparse
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from . import compiler
from .arguments import Bindable
from .check import KERNELS, include_dirs, kernel_files
from .compiler import MODES
from .errors import MetalError, MetalFault, ToolMissingError
from .library import Library
from .process import ORDERS

TYPES = {
    "float": np.float32,
    "half": np.float16,
    "bfloat": ml_dtypes.bfloat16,
    "bool": np.bool_,
    "char": np.int8,
    "uchar": np.uint8,
    "short": np.int16,
    "ushort": np.uint16,
    "int": np.int32,
    "uint": np.uint32,
    "long": np.int64,
    "ulong": np.uint64,
}
FILLS = ("random", "zeros", "ones", "arange")
MAX_PRINTED = 8  # elements printed per array


def main() -> int:
    """Exit status: 0; 1 for an invalid kernel or a fault; 2 for a usage error."""
    parser = _parser()
    args = parser.parse_args()
    try:
        buffers = {
            i: buffer
            for i, text in enumerate(args.buffer)
            if (buffer := read_buffer(text, args.seed + i)) is not None
        }
        path = args.file or find_kernel(args.kernel)
        library = Library(
            path,
            include_dirs(),
            dict(args.define),
            {_index(k): _number(v) for k, v in args.constant},
        )
        launch = library.launch(
            args.kernel,
            buffers,
            grid=args.grid,
            grid_threads=args.grid_threads,
            threads=args.threads,
            threadgroup_memory={int(k): int(v) for k, v in args.threadgroup_memory},
            mode=args.mode,
            order=args.order,
            seed=args.seed,
        )
    except (ToolMissingError, ValueError, OSError) as error:
        print(f"metal-run: {error}", file=sys.stderr)
        return 2
    except (MetalError, MetalFault) as error:
        print(error, file=sys.stderr)
        return 1
    written = [p for p in library.parameters(args.kernel) if p.binding == "buffer" and p.writes]
    for parameter in written:
        array = buffers.get(parameter.index)
        if isinstance(array, np.ndarray):
            print(f"buffer({parameter.index}) {parameter.name}: {summary(array)}")
    if args.mode == "count":
        print(launch.counts)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="metal-run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kernel", metavar="KERNEL", help="host name of the kernel")
    parser.add_argument(
        "--file", type=Path, help=".metal file of the kernel; default: searches src/extensions"
    )
    parser.add_argument("--buffer", action="append", default=[], metavar="SPEC", help="see above")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--grid", type=_size, metavar="X,Y,Z", help="number of threadgroups")
    size.add_argument("--grid-threads", type=_size, metavar="X,Y,Z", help="number of threads")
    parser.add_argument(
        "--threads", type=_size, required=True, metavar="X,Y,Z", help="threads per threadgroup"
    )
    parser.add_argument(
        "--threadgroup-memory", action="append", default=[], type=_pair, metavar="INDEX=BYTES"
    )
    parser.add_argument("--define", action="append", default=[], type=_pair, metavar="NAME=VALUE")
    parser.add_argument(
        "--constant",
        action="append",
        default=[],
        type=_pair,
        metavar="INDEX=VALUE",
        help="a function constant",
    )
    parser.add_argument("--mode", choices=MODES, default="plain")
    parser.add_argument(
        "--order", choices=list(ORDERS), default="forward", help="execution order of threads"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of data, order and arithmetic")
    return parser


def _size(text: str) -> tuple[int, int, int]:
    numbers = [int(part) for part in text.split(",")]
    if not 1 <= len(numbers) <= 3 or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"expected one to three sizes like 8,4,1, got {text!r}")
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


def _index(text: str) -> int | str:
    return int(text) if text.isdigit() else text


def _number(text: str) -> float:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        return float(text)


def read_buffer(text: str, seed: int) -> Bindable | None:
    """Parses a --buffer argument; None for "-". Raises `ValueError` if it is invalid."""
    if text == "-":
        return None
    if text.endswith(".npy"):
        array: NDArray[np.generic] = np.load(text)
        # NumPy saves bfloat16 as untyped two-byte elements, as .npy files cannot describe it.
        return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array
    kind, *rest = text.split(":")
    if kind in TYPES and len(rest) == 2 and rest[1] in FILLS:
        shape = tuple(int(n) for n in rest[0].split("x"))
        return _filled(shape, rest[1], seed).astype(TYPES[kind])
    if kind in TYPES and len(rest) == 1:
        return np.array([_number(n) for n in rest[0].split(",")]).astype(TYPES[kind]).tobytes()
    try:
        return _number(text)
    except ValueError:
        raise ValueError(
            f"--buffer {text!r}: expected TYPE:SIZE:FILL with TYPE one of {', '.join(TYPES)} and "
            f"FILL one of {', '.join(FILLS)}, TYPE:N,N,N, a .npy file, a number or -"
        ) from None


def _filled(shape: tuple[int, ...], fill: str, seed: int) -> NDArray[np.float64]:
    if fill == "random":
        return np.random.default_rng(seed).standard_normal(shape)
    if fill == "arange":
        return np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    return np.full(shape, 0.0 if fill == "zeros" else 1.0)


def find_kernel(name: str) -> Path:
    """Finds the extension's file with a kernel; raises a `ValueError` that lists all kernels."""
    known: list[str] = []
    for path in kernel_files([KERNELS]):
        kernels = compiler.prepare(path, include_dirs(), {}, {}).kernels
        if name in kernels:
            return path
        known += kernels
    raise ValueError(
        f"no kernel '{name}' in src/extensions; available: {', '.join(known) or 'none'}"
    )


def summary(array: NDArray[np.generic]) -> str:
    """Type, shape, first elements and sum."""
    values = array.reshape(-1)[:MAX_PRINTED].astype(
        np.float64 if array.dtype.kind not in "iu" else array.dtype
    )
    head = " ".join(f"{value:.6g}" for value in values)
    dots = " …" if array.size > MAX_PRINTED else ""
    total = array.astype(np.float64).sum()
    return f"{array.dtype.name} {'×'.join(map(str, array.shape))}, sum {total:.8g}: {head}{dots}"


if __name__ == "__main__":
    sys.exit(main())
