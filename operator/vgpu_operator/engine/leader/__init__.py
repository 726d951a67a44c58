"""Leader election, and the fence that a new leader closes before its first decision."""
