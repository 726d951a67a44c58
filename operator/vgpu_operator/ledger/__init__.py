"""Who holds what: observed claims, assumptions about writes under way, and the devices' state.

The ledger is the columns' only writer. Everything in it is synchronous, knows no clock and can be
rebuilt from a list of the objects.
"""

from vgpu_operator.ledger.ledger import Assumption, Holder, Ledger
from vgpu_operator.ledger.shares import ClaimKey

__all__ = ["Assumption", "ClaimKey", "Holder", "Ledger"]
