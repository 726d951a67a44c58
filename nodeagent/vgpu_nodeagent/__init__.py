"""The node agent: finds the devices of a node, publishes them, and gives them to containers."""
