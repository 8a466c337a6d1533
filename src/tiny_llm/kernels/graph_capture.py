"""Graph capture: replays a function's graph as one node.

A decode step has about twenty small operations per block, most of which take MLX longer to schedule
than to run. They are the same for every token, so `CapturedFunction` captures a function's graph
for given shapes and replays it, like a CUDA graph.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from .. import kernels
from ..errors import TaskNotImplemented, UserError

# Steps with more tokens are not captured, because computing them takes longer than scheduling them.
# They are usually prompts, whose arbitrary lengths would each need a separate capture.
MAX_CAPTURE_TOKENS = 32

# Environment variable: "off" disables capture. Until the learner has implemented the capture tasks,
# "on" raises `TaskNotImplemented`, and an unset variable disables capture, too.
CAPTURE_VARIABLE = "TINY_LLM_GRAPH_CAPTURE"


def is_decode_step(x: mx.array) -> bool:
    """Whether x, B×L×E, has few enough tokens (B·L) to be a decode step."""
    B, L, _ = x.shape
    return 0 < B * L <= MAX_CAPTURE_TOKENS


class CapturedFunction:
    """A function of arrays that runs as one captured node where beneficial.

    The first argument is B×L×E: L tokens in each of B sequences. The function is called without
    capture on a GPU, for more than `MAX_CAPTURE_TOKENS` tokens, if it contains an operation that
    cannot be captured (an MLX operation, for example), or if TINY_LLM_GRAPH_CAPTURE is off. A
    replay and a direct call give bit-identical results.

    Arrays that the function updates and returns, such as KV cache buffers, are written in place if
    the caller holds no reference to them, and copied otherwise.

    Args:
        function: function that returns arrays, which may depend only on its arguments and on
            constant arrays, because a replay does not call it. It must not read array values.
        on_first_call: whether to capture a shape on its first call instead of its second. Capturing
            takes longer than a call, and a short prompt's shape may never recur.
    """

    def __init__(self, function: Callable[..., tuple[mx.array, ...]], on_first_call: bool = True):
        self._function = function
        self._on_first_call = on_first_call
        self._graph_cache: Any = None
        self._is_capturable = True
        self._seen_once: set[tuple[Any, ...]] = set()

    def __call__(self, *inputs: mx.array) -> Any:
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
        """Replays the graph for the inputs' shapes; captures it first if beneficial.

        Returns None if no graph has been captured for these shapes.
        """
        # [task 4.7.3 replayed]
        outputs = self._graph_cache.replay(inputs)
        if outputs is None and self._should_capture_now(inputs) and self._capture(inputs):
            outputs = self._graph_cache.replay(inputs)
        return outputs
        # [/task 4.7.3 replayed]

    @staticmethod
    def should_capture(x: mx.array) -> bool:
        """Whether capture pays off for x (B×L×E): only in a decode step on the CPU."""
        return is_decode_step(x) and kernels.computes_on_cpu()

    def _should_capture_now(self, inputs: Sequence[mx.array]) -> bool:
        signature = tuple((x.dtype, *x.shape) for x in inputs)
        if self._on_first_call or signature in self._seen_once:
            # Forgets the shapes: if the graph cache evicts their capture, they are captured again
            # only after two more calls.
            self._seen_once.discard(signature)
            return True
        self._seen_once.add(signature)
        return False

    def _capture(self, inputs: Sequence[mx.array]) -> bool:
        """Captures the function for the inputs' shapes; returns whether it succeeded.

        Calls the function once with placeholder arrays that have no data. A ValueError from the
        graph cache means that the function cannot be captured for any shape.
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
    return _capture_mode() == "on"


def _capture_mode() -> str:
    mode = os.environ.get(CAPTURE_VARIABLE, "")
    if mode not in ("", "off", "on"):
        raise UserError(f'{CAPTURE_VARIABLE} must be on or off, got "{mode}".')
    return mode
