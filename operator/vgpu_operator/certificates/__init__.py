"""Certificates of webhooks, extender and scheduler: issued, renewed, served without a restart.

The leader issues and publishes (`keeper`), following a pure plan (`rotation`); every replica reads
its own pairs and takes new ones into the TLS contexts that it already serves with (`identity`).
"""
