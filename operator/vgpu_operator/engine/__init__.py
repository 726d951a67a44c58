"""Observes the cluster, decides who gets which devices, and has it written.

Everything goes one way, and what goes between two modules is a value:

    informers ─events─► apply ─► state ─► round ─effects─► effector ─► API server
    Filter, Bind ─────────────────┘                            └─events─► apply

* `engine`: the serial loop, whose round is the table of contents, and the decisions that Filter
  and Bind ask for
* `events` and `event_handlers`: what happened, and what each event means for the state; `apply`
  has the table
* `state`: all that changes: the `cache` with each `gpu_pod`, the ledger, who waits, what is due
* `scheduling`: who gets which devices, who waits, what is kept for whom
* `claims`: a claim's status, its release, when it goes, whose pods are evicted
* `devices`: the holders in a device's status, and the devices that vendors' plugins register
* `nodes`: which nodes' agents are silent
* `hami`: the events and annotations that HAMi's tools read, and whose turn it is with a plugin
* `effects` and `effector`: what is to be written, and the one place that writes
* `observability`: claims as Prometheus series, and a line for each decision that was carried out
* `pod_reading`: decodes of a pod that asks for no device only what the engine needs
* `informers` and `leader`: where objects come from, and which replica decides
* `slices`: what can wait lets calls go before
"""
