"""A container runtime for a real kubelet, without containers.

`cri.proto` is written by hand and holds only the messages in use; everything else but `runtime.py`
is generated from it (`make proto`).
"""
