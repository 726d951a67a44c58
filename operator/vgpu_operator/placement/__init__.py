"""The decision: which cards on which node. Pure: no I/O, no clock, no randomness.

`columns` is the state of all cards, `conditions` numbers those that are alike, `arrays` holds what
a look at every card needs. `checks`, `geometry` (of cards in MIG mode) and `fit` say what a card
and a node may take, `walk` why not; `order`, `score`, `topology` and `fragmentation` rank what
fits; `planning` puts a claim on one node, `taking` says what it takes there and `kept` what is kept
for others; `node_filter` says which nodes a pod may use, `rankings` remembers which may serve a
class of claims, `explaining` says why others do not. Read `decide.place` first.
"""

from vgpu_operator.placement.columns import Card, Columns
from vgpu_operator.placement.decide import best_of, place, refusals_on
from vgpu_operator.placement.kept import NOTHING_KEPT, Kept, Share
from vgpu_operator.placement.node_filter import EVERY_NODE, NodeFilter
from vgpu_operator.placement.plan import Grant, Plan, in_words
from vgpu_operator.placement.quota import Budget

__all__ = [
    "EVERY_NODE",
    "NOTHING_KEPT",
    "Budget",
    "Card",
    "Columns",
    "Grant",
    "Kept",
    "NodeFilter",
    "Plan",
    "Share",
    "best_of",
    "in_words",
    "place",
    "refusals_on",
]
