"""`pdm run build-ext-test`: compares a result of the extension with MLX's.

Uses the learner's source tree if it exists; --solution mine or ref overrides this choice.
"""

import argparse
import sys

import mlx.core as mx

from tools.course.solution_flag import parse_with_tree, restart_in_tree


def main() -> int:
    """Exit status: 0 if the result is correct; 1 if not; 2 without the extension."""
    parser = argparse.ArgumentParser(prog="build-ext-test", description=__doc__)
    _, tree = parse_with_tree(parser)
    restart_in_tree(tree, "tools.test_ext")

    from tiny_llm import kernels  # imports the selected learner's source tree or solution
    from tiny_llm.errors import UserError

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
