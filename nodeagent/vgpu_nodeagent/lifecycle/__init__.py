"""The life of a grant: start, resize, release; recovery and audit of the records."""
