"""The life of a claim after it was decided: what its status says, when it is released, what is due.

`lifecycle` has the rules, `status` the words of a status, `reconcile` the steps that name the one
write that a claim wants, `announce` the events that tell people of it.
"""
