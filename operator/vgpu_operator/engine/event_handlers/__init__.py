"""The event handlers, which update the state after an observation or the outcome of an effect.

Each function is named after its event; `apply` has the table.
"""
