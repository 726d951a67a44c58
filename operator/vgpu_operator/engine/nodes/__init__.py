"""Nodes: whose agent is silent."""
