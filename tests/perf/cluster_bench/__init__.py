"""Measure the cost of a pod on a real control plane: `make bench-cluster`.

The control plane of `make control-plane`, paper nodes (Node and GPUDevice objects without a machine
behind them), the project as manifests/ installs it with two replicas, and one played agent. For
each number of nodes the same pods are created at once, first without devices through plain
kube-scheduler, then with devices in HAMi's words through webhook, kube-scheduler and extender.
"""
