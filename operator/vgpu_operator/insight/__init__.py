"""Answers about a cluster for people: where a pod would go, and why a claim is where it is.

The command line and the web page ask here. Nothing in this room reads a cluster, writes to one or
prints: a question comes with the state that it is answered from. `live_cluster` answers from the
engine's state and `offline_cluster` from a file; both call the functions that decide in earnest.
"""
