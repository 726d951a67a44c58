"""The life of a claim after its decision: its status, its release and its deletion.

`lifecycle` holds the rules and `status` builds the statuses. The steps of `reconcile` choose the
one write that a claim needs next, and `announce` makes the events that report it.
"""
