"""Functions whose graph is recorded once, and is one node of every later graph.

A decode step has twenty small operations in each block, and MLX needs more time to schedule most of
them than they take. From one token to the next the operations and their order stay the same; only
the numbers change. `Recorded` writes down what a function does with arrays of certain shapes, and
replays it. CUDA calls this a graph; vLLM and others decode on GPUs with it.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from .. import kernels
from ..errors import UserError, YourTurn

# With more tokens the operations outweigh their scheduling. And each shape is recorded separately:
# prompts come in any length, decode steps in a few.
MOST_TOKENS = 32

# "off": functions are called as they are. "on": where recording is still to be written, as in a
# learner's tree, that is an error. Without it, such a function is called as it is.
VARIABLE = "TINY_LLM_RECORDING"


def is_decode_step(x: mx.array) -> bool:
    """Whether x B×L×E is a token or a few of each sequence, and no prompt."""
    B, L, _ = x.shape
    return 0 < B * L <= MOST_TOKENS


class Recorded:
    """A function of arrays, the first B×L×E, that becomes one node of the graph where that pays.

    On a GPU, for more than `MOST_TOKENS` tokens, and if it has an operation that cannot be recorded
    (one that is not the extension's), the function is called as it is; so it is if
    TINY_LLM_RECORDING is off. The results are the same to the last bit.

    Arrays that the function writes into and returns, as the buffers of a KV cache, are overwritten
    in place if the caller keeps no reference to them, and copied otherwise.

    Args:
        function: returns arrays. It computes them from its arguments and from arrays that do not
            change, because it is not called for every input. It may not look at values.
        at_once: record shapes when they are first seen. Otherwise the second time: recording takes
            longer than a call, and a short prompt's shapes may never come again.
    """

    def __init__(self, function: Callable[..., tuple[mx.array, ...]], at_once: bool = True):
        self._function = function
        self._at_once = at_once
        self._recorder: Any = None
        self._can_be_recorded = True
        self._seen_once: set[tuple[Any, ...]] = set()

    def __call__(self, *inputs: mx.array) -> Any:
        """What the function returns for `inputs`."""
        if not self._can_be_recorded or not self.pays(inputs[0]) or _wanted() == "off":
            return self._function(*inputs)
        if self._recorder is None:
            self._recorder = kernels.extension().Recorder()
        try:
            outputs = self._replayed(inputs)
        except YourTurn:
            if must_be_recorded():
                raise
            self._can_be_recorded, outputs = False, None
        return self._function(*inputs) if outputs is None else outputs

    def _replayed(self, inputs: Sequence[mx.array]) -> Any:
        """The function's outputs from one node; None if nothing is recorded for these inputs.

        If there is no recording, one is made first, if it is time for that and can be done.
        """
        # [task 4.7.3 replayed]
        outputs = self._recorder.replay(inputs)
        if outputs is None and self._is_time_for(inputs) and self._record(inputs):
            outputs = self._recorder.replay(inputs)
        return outputs
        # [/task 4.7.3 replayed]

    @staticmethod
    def pays(x: mx.array) -> bool:
        """Whether it may pay for x B×L×E."""
        return is_decode_step(x) and kernels.computes_on_cpu()

    def _is_time_for(self, inputs: Sequence[mx.array]) -> bool:
        """Whether inputs of these shapes are to be recorded now."""
        kind = tuple((x.dtype, *x.shape) for x in inputs)
        if self._at_once or kind in self._seen_once:
            self._seen_once.discard(kind)  # if the recording is dropped, it all begins anew
            return True
        self._seen_once.add(kind)
        return False

    def _record(self, inputs: Sequence[mx.array]) -> bool:
        """Records the function for inputs of these shapes, if it can be.

        It is called once, with arrays of these shapes that have no data. A ValueError of the
        recorder says that it never can be.

        Returns:
            Whether it was recorded.
        """
        # [task 4.7.3 record]
        blanks = self._recorder.placeholders(inputs)
        outputs = self._function(*blanks)
        try:
            self._recorder.record(blanks, outputs)
        except ValueError:
            self._can_be_recorded = False
        return self._can_be_recorded
        # [/task 4.7.3 record]


def must_be_recorded() -> bool:
    """Whether it is an error that a learner has not written recording yet: see `VARIABLE`."""
    return _wanted() == "on"


def _wanted() -> str:
    """What `VARIABLE` says, "" without it.

    Raises:
        UserError: another word.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "off", "on"):
        raise UserError(f'{VARIABLE} is "{wanted}"; it may be on or off.')
    return wanted
