"""One module per vendor behind one protocol: the devices, their use and their events."""
