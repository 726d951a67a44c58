"""Observes the cluster, decides who gets which devices, and has it written.

Everything goes one way, and what goes between two modules is a value:

    informers ─events─► apply ─► state ─► round ─effects─► effector ─► API server
    Filter, Bind ─────────────────┘                            └─events─► apply

* `engine`: the serial loop, whose round is the table of contents, and the decisions that Filter
  and Bind ask for
* `events` and `apply`: what happened, and what that means for the state
* `state`: all that changes: the `cache` with each `gpu_pod`, the ledger, who waits, what is due
* `scheduling`: who gets which devices, who waits, what is kept for whom
* `claims`: a claim's status, its release, when it goes
* `devices`: the holders in a device's status
* `registers` and `plugin_turns`: devices that other vendors' plugins register on Nodes, and whose
  turn it is with such a plugin
* `agents`: which nodes' agents are silent
* `violators`: whose pods are evicted
* `hami_events`: HAMi's events of a pod, where the configuration asks for them
* `records`: the annotations that a pod gets with its node
* `decision_log`: a line for each decision that was carried out
* `claim_metrics`: claims as Prometheus series
* `effects` and `effector`: what is to be written, and the one place that writes
* `pod_reading`: decodes of a pod without our words only what the engine needs
* `informers`, `leader`, `clock`: where objects come from, which replica decides, what time it is
* `slices`: what can wait lets calls go before
"""
