"""A stand-in for kube-scheduler: its queue with back-off, and the calls to an extender.

It does what a GPU pod meets in the real scheduler, and its messages have the same text.
"""
