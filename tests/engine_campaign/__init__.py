"""A fault campaign of the engine in virtual time: hundreds of generated sequences in a minute.

`make campaign SEED= RUNS=` runs them. A run plays steps that a seed draws (`steps`) on a small
cluster (`world`) whose API server (`server`) loses, delays and reorders what the operator's real
parts (`leader`) read and write. `judge` reads every write and what runs on the nodes, and imports
nothing from the product but the types of its API.
"""
