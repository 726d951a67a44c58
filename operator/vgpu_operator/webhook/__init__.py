"""The process of the admission webhooks: stateless, any number of replicas, no engine loaded.

Pods and claims are admitted here and nowhere else. The operator issues the certificate that this
process serves with, and decides; neither waits for the other.
"""
