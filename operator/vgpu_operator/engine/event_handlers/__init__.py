"""The handlers of events: what an observation, or the outcome of an effect, means for the state.

Each is named for the event that it takes; `apply` has the table.
"""
