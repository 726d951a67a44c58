"""What this node has given away, on disk: slots, claims, MIG instances."""
