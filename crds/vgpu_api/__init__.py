"""The shared vocabulary: typed resources, quantities, names, reasons and effective use.

This package imports none of our other packages and does no I/O. The operator, the agent and the
tests import it.
"""
