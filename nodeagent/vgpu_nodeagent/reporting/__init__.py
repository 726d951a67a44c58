"""What the agent tells others: device objects, conditions, events, metrics, probes, its Lease."""
