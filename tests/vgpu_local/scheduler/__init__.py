"""A stand-in for kube-scheduler: its queue with back-off, and the calls to an extender.

It has the parts of the real scheduler that affect GPU pods, with the same messages.
"""
