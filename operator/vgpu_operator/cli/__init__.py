"""The command line `kubectl vgpu`: reads a cluster or files, asks `insight`, prints the answer."""
