"""The command line, `kubectl vgpu`: reads the cluster or files, asks `insight`, and prints."""
