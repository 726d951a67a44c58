"""Nodes whose agents are silent."""
