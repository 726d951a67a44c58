"""The kubelet's device plugin API: slots, their late binding to pods, and the records of both."""
