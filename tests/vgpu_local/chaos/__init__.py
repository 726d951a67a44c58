"""The fault campaign: injects random faults into a cluster under load, and checks all writes.

`python -m vgpu_local.chaos --seed 7 --runs 3`; see the README beside this file.
"""
