"""The node agent: finds the cards of a node, publishes them, and hands them to containers."""
