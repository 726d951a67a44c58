"""Observes the cluster, decides which pods get which devices, and writes the decisions.

Data flows one way, and modules exchange values only:

    informers ─events─► apply ─► state ─► round ─effects─► effector ─► API server
    Filter, Bind ─────────────────┘                            └─events─► apply

* `engine`: the serial loop, and the decisions for Filter and Bind; start reading at Engine.round
* `events` and `event_handlers`: the events, and a handler for each that updates the state; `apply`
  has the table
* `state`: everything that changes: the `cache` with each `gpu_pod`, the ledger, the queue, timers
* `scheduling`: places pods and claims, queues them, and keeps capacity for others
* `preemption`: evicts less important pods for one that waits
* `resource_claims`: in Claims mode, the ResourceClaims by which decided pods are handed over
* `claims`: a claim's status, its release and deletion, and the eviction of violators
* `devices`: the holders in a device's status, and the devices that vendors' plugins register
* `nodes`: nodes with silent agents
* `hami`: the events and annotations that HAMi's tools read, and the turns of pods at a plugin
* `effects` and `effector`: the writes to be made, and the one place that makes them
* `observability`: metrics about claims, and a log line for each decision
* `pod_reading`: decodes only the needed fields of pods that ask for no device
* `informers` and `leader`: the source of objects, and the election of the replica that decides
* `slices`: lets calls of kube-scheduler go ahead of work that can wait
"""
