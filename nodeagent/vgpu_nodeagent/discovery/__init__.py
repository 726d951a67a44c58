"""The devices of the node: which there are, what they can give, and whether they are healthy."""
