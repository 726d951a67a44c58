"""The read-only web page, in a process of its own that watches the cluster and decides nothing.

`mirror` keeps the engine's state up to date but never leads. `sight` asks the API server which
objects a visitor may see. `views` and `what_if` compute documents from both, and `server` serves
them over HTTP. `usage_reader` keeps the use of memory and compute, which `prometheus` or
`agent_metrics` reads, in the mirror.
"""
