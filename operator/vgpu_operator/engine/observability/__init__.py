"""Metrics and a log of the engine's decisions."""
