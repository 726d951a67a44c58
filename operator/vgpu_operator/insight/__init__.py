"""Answers users' questions about a cluster: where a pod would go, and why a claim is where it is.

The command line and the web page share this package. It neither reads or changes a cluster nor
prints anything: each question comes with the state to answer it from. `live_cluster` answers from
the engine's state and `offline_cluster` from a file; both call the functions that make real
decisions.
"""
