"""kube-scheduler's extender: Filter, Preempt and Bind over HTTP(S)."""
