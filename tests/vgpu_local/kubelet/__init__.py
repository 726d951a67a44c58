"""A stand-in for the kubelet of one node, container runtime included.

With it the node agent runs and is tested without root and without Kubernetes. The agent sees the
interfaces of a real kubelet (device plugin, PodResources, checkpoint, CDI), the API server gets the
reports of one, and a container is a local process. It must behave as a real kubelet was observed to
behave; if the two differ, the stand-in is wrong.
"""
