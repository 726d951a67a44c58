"""The ledger records which claim holds which devices, including writes in flight.

Only the ledger writes the columns. It is synchronous, has no clock, and can be rebuilt from a list
of the objects.
"""

from typing import TYPE_CHECKING

from vgpu_api.lazy import lazily

if TYPE_CHECKING:
    from vgpu_operator.ledger.ledger import Assumption, Holder, Ledger
    from vgpu_operator.ledger.shares import ClaimKey
else:
    __getattr__ = lazily(
        __name__,
        {
            "Assumption": "ledger",
            "ClaimKey": "shares",
            "Holder": "ledger",
            "Ledger": "ledger",
        },
    )

__all__ = ["Assumption", "ClaimKey", "Holder", "Ledger"]
