"""The kubelet: the device plugin API that it calls, and its own records of slots and pods."""
