"""What the engine shows of its decisions: metrics and a log."""
