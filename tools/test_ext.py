"""`pdm run build-ext-test`: calls the extension once and compares with MLX's own arithmetic."""

import sys

import mlx.core as mx

from tiny_llm import kernels
from tiny_llm.errors import UserError


def main() -> int:
    """Prints `correct: True` and exits with 0 if the extension computes what it should."""
    x = mx.random.normal((3, 4))
    y = mx.random.normal((3, 4))
    try:
        z = kernels.axpby(x, y, 4.0, 2.0, stream=mx.cpu)
    except UserError as error:
        print(f"build-ext-test: {error}", file=sys.stderr)
        return 2
    correct = bool(mx.allclose(z, 4.0 * x + 2.0 * y).item())
    print(f"z shape: {z.shape}")
    print(f"z dtype: {z.dtype}")
    print(f"correct: {correct}")
    return 0 if correct else 1


if __name__ == "__main__":
    sys.exit(main())
