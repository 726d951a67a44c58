"""Mode Claims: ResourceClaims through which kube-scheduler and the kubelet learn of decisions."""
