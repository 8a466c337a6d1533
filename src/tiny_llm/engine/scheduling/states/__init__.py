"""Recurrent states: slots of running requests, prefix cache checkpoints.

This package must not depend on scheduling order, or on pages outside the prefix cache.

Reading order: checkpoints, placement, state_slots.
"""

from .state_slots import StateSlots

__all__ = ["StateSlots"]
