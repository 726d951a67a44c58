"""The shared vocabulary: typed resources, quantities, names, reasons and effective use.

The operator, the agent and the tests import this package. It imports none of our other packages and
does no I/O.
"""
