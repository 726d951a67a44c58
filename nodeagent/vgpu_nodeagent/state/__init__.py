"""What the node has given to containers, on disk, and the newest known objects of the API."""
