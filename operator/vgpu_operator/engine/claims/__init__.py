"""The life of a claim after it was decided: its status, its release, what is due.

`lifecycle` has the rules, `status` the words of a status, `reconcile` the steps that name the one
write that a claim wants, `announce` the events that report it.
"""
