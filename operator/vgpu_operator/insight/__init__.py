"""Answers about a cluster for people: where a pod would go, and why a claim is where it is.

The command line and the web page ask here. This package does not read a cluster, write to one or
print: a question comes with the state that it is answered from. `live_cluster` answers from the
engine's state and `offline_cluster` from a file; both call the functions that decide in earnest.
"""
