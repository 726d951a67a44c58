"""The read-only web page: its own process, which watches the cluster and decides nothing.

`mirror` keeps the engine's state up to date and never leads; `sight` asks the API server what a
visitor may see; `views` and `what_if` are functions of both; `server` speaks HTTP.
"""
