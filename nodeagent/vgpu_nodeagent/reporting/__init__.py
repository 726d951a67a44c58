"""Everything the agent publishes: GPUDevices, conditions, events, metrics, probes."""
