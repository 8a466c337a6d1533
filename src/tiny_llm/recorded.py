"""Functions whose graph is recorded once, and is one node of every later graph.

A decode step is twenty small operations a block, and MLX spends more time on an operation than most
of them take. Python says which they are, and in what order, each time anew; but from one token to
the next nothing changes except the numbers. `Recorded` writes down what a function does with arrays
of certain shapes, and replays it: what CUDA calls a graph, and how vLLM and others decode on GPUs.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from . import kernels

# More tokens are worth their nodes; and each shape is recorded by itself, while prompts have any.
MOST_TOKENS = 32


class Recorded:
    """A function of arrays, B×L×E the first, that takes one node of the graph where that pays.

    Where it does not, on a GPU, for more than `MOST_TOKENS` tokens, or for a None among the
    arguments, it is the function. The results are the same to the last bit.

    Args:
        function: returns arrays, and computes them from its arguments and from arrays that stay
            as they are: it is called once for each list of shapes. It may not look at values.

    Raises:
        ValueError: when called, if the function computes nothing, or on several streams.
    """

    def __init__(self, function: Callable[..., tuple[mx.array, ...]]):
        self._function = function
        self._recorder: Any = None

    def __call__(self, *inputs: mx.array | None) -> Any:
        """What the function returns for `inputs`."""
        if not _pays(inputs):
            return self._function(*inputs)
        if self._recorder is None:
            self._recorder = kernels.extension().Recorder()
        outputs = self._recorder.replay(inputs)
        if outputs is None:
            blanks = self._recorder.placeholders(inputs)
            self._recorder.record(blanks, self._function(*blanks))
            outputs = self._recorder.replay(inputs)
        return outputs


def _pays(inputs: tuple[mx.array | None, ...]) -> bool:
    if any(x is None for x in inputs) or mx.default_device() != mx.cpu:
        return False
    B, L, _ = inputs[0].shape  # type: ignore[union-attr]
    return 0 < B * L <= MOST_TOKENS
