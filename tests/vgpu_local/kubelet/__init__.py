"""A stand-in for the kubelet of one node, container runtime included.

It exists so that the node agent can be run and tested without root and without Kubernetes: towards
the agent it behaves as the kubelet does (device plugin, PodResources, checkpoint, CDI), towards the
API server it reports what a kubelet reports, and a container is a local process. What was seen on
a real kubelet decides how it behaves; where the two differ, this one is wrong.
"""
