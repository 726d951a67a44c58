"""The event handlers, which update the state after an observation or the outcome of an effect.

Each is named for its event; `apply` has the table.
"""
