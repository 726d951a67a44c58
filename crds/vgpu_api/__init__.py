"""The language everybody speaks: typed resources, quantities, names, reasons, effective use.

Depends on nothing of ours and does no I/O; operator, agent and tests import it.
"""
