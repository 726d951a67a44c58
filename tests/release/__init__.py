"""Build a release: manifests, a Helm chart, the wheel, a bill of materials and digests."""
