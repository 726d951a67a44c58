"""One module a vendor behind one protocol: which cards there are, and how they are."""
