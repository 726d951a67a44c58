"""The devices of the node, their capacity and their health."""
