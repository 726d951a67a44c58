"""A stand-in for kube-scheduler: pending pods, an extender's filter and bind, and the back-off.

It plays what a pod that asks for a GPU meets in the real one, and words its refusals the same way.
"""
