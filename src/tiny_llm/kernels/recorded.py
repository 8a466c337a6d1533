"""Functions whose graph is recorded once, and is one node of every later graph.

A decode step is twenty small operations a block, and MLX spends more time on an operation than most
of them take. Python says which they are, and in what order, each time anew; but from one token to
the next nothing changes except the numbers. `Recorded` writes down what a function does with arrays
of certain shapes, and replays it: what CUDA calls a graph, and how vLLM and others decode on GPUs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from .. import kernels

# More tokens are worth their nodes; and each shape is recorded by itself, while prompts have any.
MOST_TOKENS = 32


class Recorded:
    """A function of arrays, B×L×E the first, that takes one node of the graph where that pays.

    Where it does not, on a GPU or for more than `MOST_TOKENS` tokens, it is the function, and so it
    is if an operation cannot be recorded: one that is not the extension's. The results are the same
    to the last bit.

    What the function writes into and returns, the buffers of a KV cache, is overwritten in place if
    the caller keeps no reference to it, and copied otherwise.

    Args:
        function: returns arrays, and computes them from its arguments and from arrays that stay
            as they are: it is called once for each list of shapes. It may not look at values.
    """

    def __init__(self, function: Callable[..., tuple[mx.array, ...]]):
        self._function = function
        self._recorder: Any = None
        self._can_be_recorded = True

    def __call__(self, *inputs: mx.array) -> Any:
        """What the function returns for `inputs`."""
        if not self._can_be_recorded or not self.pays(inputs[0]):
            return self._function(*inputs)
        if self._recorder is None:
            self._recorder = kernels.extension().Recorder()
        outputs = self._recorder.replay(inputs)
        if outputs is None and self._record(inputs):
            outputs = self._recorder.replay(inputs)
        return self._function(*inputs) if outputs is None else outputs

    @staticmethod
    def pays(x: mx.array) -> bool:
        """Whether it may pay for x B×L×E."""
        B, L, _ = x.shape
        return 0 < B * L <= MOST_TOKENS and mx.default_device() == mx.cpu

    def _record(self, inputs: Sequence[mx.array]) -> bool:
        """Records the function for inputs of these shapes, if it can be."""
        blanks = self._recorder.placeholders(inputs)
        outputs = self._function(*blanks)
        try:
            self._recorder.record(blanks, outputs)
        except ValueError:
            self._can_be_recorded = False
        return self._can_be_recorded
