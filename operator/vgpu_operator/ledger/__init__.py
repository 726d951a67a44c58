"""Who holds what: observed claims, assumptions about writes under way, and the cards' state.

The ledger is the columns' only writer. Everything in it is synchronous, knows no clock and can be
rebuilt from a list of the objects.
"""

from vgpu_operator.ledger.admits import barred_by, node_admits
from vgpu_operator.ledger.board import ClaimKey
from vgpu_operator.ledger.ledger import Assumption, Holder, Ledger

__all__ = ["Assumption", "ClaimKey", "Holder", "Ledger", "barred_by", "node_admits"]
