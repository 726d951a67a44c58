"""The kubelet's DRA driver `vgpu.dev`: prepares ResourceClaims.

    plugin.py        answers the kubelet: prepare, unprepare, health
    registration.py  keeps the plugin's sockets in place, by which the kubelet finds it
    preparation.py   makes a ResourceClaim shares with pages and CDI specs, and ends them
    consumers.py     finds the pod of a ResourceClaim, and the container of each request
    slices.py        publishes the devices as ResourceSlices

The VGPUClaim decides what a container gets. A ResourceClaim that no VGPUClaim names is refused,
whatever is written in it (docs/design/dra.md).
"""
