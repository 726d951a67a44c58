"""Devices: what the operator reports about them, and those that vendors' plugins register."""
