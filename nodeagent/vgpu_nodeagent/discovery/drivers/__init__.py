"""One module per vendor behind one protocol: which devices there are, and how they are."""
