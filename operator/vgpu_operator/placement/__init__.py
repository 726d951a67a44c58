"""The decision: which cards on which node. Pure: no I/O, no clock, no randomness.

`columns` is the state of all cards, `conditions` numbers those that are alike. `checks`, `geometry`
(of cards in MIG mode) and `fit` say what a card and a node may take, `walk` why not; `order`,
`score`, `topology` and `fragmentation` rank what fits; `planning` puts a claim on one node, and
`taking` says what it takes there; `rankings` remembers which nodes may serve a class of claims,
`tried` and `explaining` say why others do not. Read `decide.place` first.
"""

from vgpu_operator.placement.columns import Card, Columns
from vgpu_operator.placement.decide import place, refusals_on
from vgpu_operator.placement.plan import Grant, Plan, in_words
from vgpu_operator.placement.quota import Budget

__all__ = ["Budget", "Card", "Columns", "Grant", "Plan", "in_words", "place", "refusals_on"]
