"""The kubelet's gRPC interfaces, as the agent speaks them.

The `.proto` files here are written by hand and hold only the messages in use; the field numbers are
the kubelet's own (device plugin `v1beta1`; pod resources, DRA, DRA's health and plugin registration
`v1`), so anything left out is skipped by protobuf as an unknown field. Everything else in this
package is generated: run `make proto` after a change, `make lint` fails when it was forgotten.
"""
