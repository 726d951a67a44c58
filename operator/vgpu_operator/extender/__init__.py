"""The scheduler plugin: kube-scheduler's extender, filter and bind over HTTP(S)."""
