"""The operator's own preemption: evicts less important pods for a pod that waits for devices.

`choose` finds the pods whose end would make room, `preempt_due` ends them one after another, and
`verb` answers kube-scheduler, which does not know device memory and compute, when it preempts.
"""
