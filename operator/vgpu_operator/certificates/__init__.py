"""Certificates of the webhooks, the extender and the scheduler, renewed without a restart.

The leader issues and publishes them (`keeper`), following a pure plan (`rotation`). Every replica
reads its own pairs and loads new ones into the TLS contexts that are already in use (`identity`).
See docs/design/certificates.md.
"""
