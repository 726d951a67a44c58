"""Rare work of the leader as Kopf handlers, in a thread separate from the engine's.

* `configuration` reports ConfigMaps that are wrong
* `certificates` decides when certificates are checked
* `controllers` runs both while this replica leads

docs/design/controllers.md has the limits that a handler must keep, and the kinds that do not fit
into them.
"""
