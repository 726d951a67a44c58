"""Claims mode: ResourceClaims through which kube-scheduler and the kubelet learn of decisions."""
