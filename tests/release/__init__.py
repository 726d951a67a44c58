"""What a release is made of: manifests, a Helm chart, the wheel, a bill of materials, digests."""
