"""The serial scheduler: what was seen, what is decided, what is written, and who leads."""
