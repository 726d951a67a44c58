"""The decision: which cards on which node. Pure: no I/O, no clock, no randomness.

`columns` is the state of all cards, `fit` says what a card may take, `order` and `score` rank what
fits, `plan` puts a claim together. Read `plan.place` first.
"""

from vgpu_operator.placement.columns import Card, Columns
from vgpu_operator.placement.plan import Grant, Plan, place

__all__ = ["Card", "Columns", "Grant", "Plan", "place"]
