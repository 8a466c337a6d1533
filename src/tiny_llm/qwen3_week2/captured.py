"""Decode steps as captured graphs, from Week 4 on."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from ..errors import TaskNotImplemented
from ..kernels.graph_capture import capture_required, is_decode_step
from ..kv_storage.paged_storage import PlannedLayers
from ..kv_storage.step_plan import StepPlan
from .attention import CosSin

# (one cache per layer, B, L) -> plan for L more tokens in each of B sequences, or None.
PlanFn = Callable[[Sequence[Any], int, int], StepPlan | None]


class CapturedSteps(ABC):
    """Base of a model that runs its layers one by one, or a planned step as one graph node."""

    _plan: PlanFn | None  # None if the attention backend does not support planning
    _run_planned: PlannedLayers

    @abstractmethod
    def _run_each_layer(
        self, x: mx.array, cos_sin: CosSin, cache: Sequence[Any]
    ) -> tuple[mx.array, mx.array]: ...

    def _run_layers_from(
        self, x: mx.array, cos_sin: CosSin, cache: Sequence[Any]
    ) -> tuple[mx.array, mx.array]:
        """Runs the layers on embeddings x B×L×E, as a captured graph where possible."""
        try:
            outputs = self._try_run_planned(x, cos_sin, cache)
        except TaskNotImplemented:  # the learner has yet to implement Week 4's graph capture
            if capture_required():
                raise
            outputs = None
        return self._run_each_layer(x, cos_sin, cache) if outputs is None else outputs

    def _try_run_planned(
        self, x: mx.array, cos_sin: CosSin, cache: Sequence[Any]
    ) -> tuple[mx.array, mx.array] | None:
        """Runs a decode step as a captured graph, or returns None to fall back.

        The fallback, `_run_each_layer`, applies to prompts, to attention without a planner (no
        flash attention), and to steps that require a cache to grow first.
        """
        # [task 4.7.4]
        if self._plan is None or not is_decode_step(x):
            return None
        B, L, _ = x.shape
        step_plan = self._plan(cache, B, L)
        return None if step_plan is None else self._run_planned(x, cos_sin, step_plan)
        # [/task 4.7.4]
