"""Recurrent states: slots of running requests, prefix cache checkpoints.

Must not know about pages, except for prefix cache nodes, or about scheduling order.

Reading order: checkpoints, placement, state_slots.
"""

from .state_slots import StateSlots

__all__ = ["StateSlots"]
