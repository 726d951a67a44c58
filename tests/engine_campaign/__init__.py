"""A fault campaign of the engine in virtual time: ten minutes of a cluster in a second or two.

`make campaign SEED= RUNS=` plays runs. Each plays the steps that its seed draws (`steps`) on a
small cluster (`world`, `machines`, `scheduler`) whose API server (`server`) loses and delays what
the operator's real parts (`leader`) read and write. Then all faults end: whatever fits must be
placed, and once all pods are deleted nothing may be left. `judge` reads every write and what runs
on the machines, and imports nothing from the product but the types of its API.

A run that fails is played again with fewer steps, until each of them is needed. The seed fixes
everything where `PYTHONHASHSEED` is the same, as `make campaign` sees to.
"""
