"""The operator's reports about devices, and the devices that vendors' plugins register."""
