"""Access to the API server for all our processes: client, reflector, object writer, lease."""
