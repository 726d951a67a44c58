"""How any process of ours talks to the API server: client, reflector, status writer, lease."""
