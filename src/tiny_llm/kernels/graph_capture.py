"""Functions whose graph is recorded once, and is one node of every later graph.

A decode step has twenty small operations in each block, and MLX needs more time to schedule most of
them than they take. From one token to the next the operations and their order stay the same; only
the numbers change. `CapturedFunction` writes down what a function does with arrays of certain
shapes, and replays it. CUDA calls this a graph; vLLM and others decode on GPUs with it.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from .. import kernels
from ..errors import TaskNotImplemented, UserError

# With more tokens the operations outweigh their scheduling. And each shape is recorded separately:
# prompts come in any length, decode steps in a few.
MAX_CAPTURE_TOKENS = 32

# "off": functions are called as they are. "on": where recording is still to be written, as in a
# learner's tree, that is an error. Without it, such a function is called as it is.
CAPTURE_VARIABLE = "TINY_LLM_GRAPH_CAPTURE"


def is_decode_step(x: mx.array) -> bool:
    """Whether x B×L×E is a token or a few of each sequence, and no prompt."""
    B, L, _ = x.shape
    return 0 < B * L <= MAX_CAPTURE_TOKENS


class CapturedFunction:
    """A function of arrays, the first B×L×E, that becomes one node of the graph where that pays.

    On a GPU, for more than `MAX_CAPTURE_TOKENS` tokens, and if it has an operation that cannot be
    recorded (one that is not the extension's), the function is called as it is; so it is if
    TINY_LLM_GRAPH_CAPTURE is off. The results are the same to the last bit.

    Arrays that the function writes into and returns, as the buffers of a KV cache, are overwritten
    in place if the caller keeps no reference to them, and copied otherwise.

    Args:
        function: returns arrays. It computes them from its arguments and from arrays that do not
            change, because it is not called for every input. It may not look at values.
        on_first_call: record shapes when they are first seen. Otherwise the second time: recording
            takes longer than a call, and a short prompt's shapes may never come again.
    """

    def __init__(self, function: Callable[..., tuple[mx.array, ...]], on_first_call: bool = True):
        self._function = function
        self._at_once = on_first_call
        self._graph_cache: Any = None
        self._is_capturable = True
        self._seen_once: set[tuple[Any, ...]] = set()

    def __call__(self, *inputs: mx.array) -> Any:
        """What the function returns for `inputs`."""
        if (
            not self._is_capturable
            or not self.should_capture(inputs[0])
            or _capture_mode() == "off"
        ):
            return self._function(*inputs)
        if self._graph_cache is None:
            self._graph_cache = kernels.extension().GraphCache()
        try:
            outputs = self._replay(inputs)
        except TaskNotImplemented:
            if capture_required():
                raise
            self._is_capturable, outputs = False, None
        return self._function(*inputs) if outputs is None else outputs

    def _replay(self, inputs: Sequence[mx.array]) -> Any:
        """The function's outputs from one node; None if nothing is recorded for these inputs.

        If there is no recording, one is made first, if it is time for that and can be done.
        """
        # [task 4.7.3 replayed]
        outputs = self._graph_cache.replay(inputs)
        if outputs is None and self._should_capture_now(inputs) and self._capture(inputs):
            outputs = self._graph_cache.replay(inputs)
        return outputs
        # [/task 4.7.3 replayed]

    @staticmethod
    def should_capture(x: mx.array) -> bool:
        """Whether it may pay for x B×L×E."""
        return is_decode_step(x) and kernels.computes_on_cpu()

    def _should_capture_now(self, inputs: Sequence[mx.array]) -> bool:
        """Whether inputs of these shapes are to be recorded now."""
        kind = tuple((x.dtype, *x.shape) for x in inputs)
        if self._at_once or kind in self._seen_once:
            self._seen_once.discard(kind)  # if the recording is dropped, it all begins anew
            return True
        self._seen_once.add(kind)
        return False

    def _capture(self, inputs: Sequence[mx.array]) -> bool:
        """Records the function for inputs of these shapes, if it can be.

        It is called once, with arrays of these shapes that have no data. A ValueError of the
        recorder says that it never can be.

        Returns:
            Whether it was recorded.
        """
        # [task 4.7.3 capture]
        blanks = self._graph_cache.placeholders(inputs)
        outputs = self._function(*blanks)
        try:
            self._graph_cache.capture(blanks, outputs)
        except ValueError:
            self._is_capturable = False
        return self._is_capturable
        # [/task 4.7.3 capture]


def capture_required() -> bool:
    """Whether an unwritten capture (the learner's task) is an error: see `CAPTURE_VARIABLE`."""
    return _capture_mode() == "on"


def _capture_mode() -> str:
    """What `CAPTURE_VARIABLE` says, "" without it.

    Raises:
        UserError: another word.
    """
    wanted = os.environ.get(CAPTURE_VARIABLE, "")
    if wanted not in ("", "off", "on"):
        raise UserError(f'{CAPTURE_VARIABLE} is "{wanted}"; it may be on or off.')
    return wanted
