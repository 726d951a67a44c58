"""The node agent: finds the devices of a node, publishes them, and hands them to containers."""
