"""Enforcement of grants: limit page, usage region and CDI spec of each allocation; watchdog."""
