"""The record of what the node has allocated, on disk, and the newest known API objects."""
