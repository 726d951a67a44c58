"""The fault campaign: a cluster under load is hurt at random, and everything written is judged.

`python -m vgpu_local.chaos --seed 7 --runs 3`; see the README beside this file.
"""
