"""A Kubernetes cluster in one process, for tests and the demo: no root, no network but loopback.

It is a stand-in: the integration suite also runs against a real control plane, and where the two
differ, this one is wrong.
"""
