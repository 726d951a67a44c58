"""A Kubernetes cluster in one process, for tests and the demo: no root, no network but loopback.

It is a stand-in: the integration suite also runs against a real control plane, and where the two
differ, this one is wrong.

* what stands in for Kubernetes: `apiserver`, `scheduler`, `kubelet`, `podwriter`, `service`, `pki`
* the real thing in its place: `control_plane`, `fault_proxy` with `request_words` and
  `broken_stream`, `recorder`; put together in `real_cluster`
* a real kubelet for its own tests: `real_kubelet`, on a container runtime that is played (`cri`)
* what they stand on: `background`, `listener`, `ports`, `started`, `wall_clock`
* our programs: `programs`, `daemon`, `daemons`, `fork_server`, `operators`, `page`, `nodes`,
  `simulated_nodes`, `agent_pod`, `small_disk`
* all of it at once: `cluster` on a `foundation`, with `options`, `assembly`, `webhooks` and
  `readiness`; or as manifests/ installs it: `installed`, `installation`, `accounts`
* a neighbour: `hami` (its device plugin and what its scheduler writes)
* used by tests: `steps`, `pod_groups`, `waiting`, `checker` (what was broken at any moment),
  `kubectl`, `typed`, `command` (kubectl-vgpu, with files for its output or in a terminal)
* `demo`, `soak`, and `chaos`, the fault campaigns
"""
