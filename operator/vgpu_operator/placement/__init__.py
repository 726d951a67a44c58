"""The decision: which devices on which node. Pure: no I/O, no clock, no randomness.

`columns` is the state of all devices, `device` numbers those that are alike, `arrays` holds what
a look at every device needs. `parts` has what requests for a part of a device mean on a node.
`checks` and `geometry` (of devices in MIG mode) have what a device
has room for and what a request takes of it, `bounds` what a pod's nodes, its quota and what is
kept for others leave. `score`, `order`, `topology`, `choices` and `fragmentation` rank what fits;
`planning` puts a claim on one node, and `walk` has why it does not fit there; `rankings` remembers
which nodes may serve a class of claims, `explaining` has why others do not and `amounts` how far
from it they are. Read `decide.place` first.
"""

from vgpu_operator.placement.amounts import amounts, impossible
from vgpu_operator.placement.bounds import EVERY_NODE, NOTHING_KEPT, Budget, Kept, NodeFilter, Share
from vgpu_operator.placement.columns import Columns, DeviceFacts
from vgpu_operator.placement.decide import best_of, place, refusals_on
from vgpu_operator.placement.plan import Grant, Plan, in_words

__all__ = [
    "EVERY_NODE",
    "NOTHING_KEPT",
    "Budget",
    "Columns",
    "DeviceFacts",
    "Grant",
    "Kept",
    "NodeFilter",
    "Plan",
    "Share",
    "amounts",
    "best_of",
    "impossible",
    "in_words",
    "place",
    "refusals_on",
]
