"""Who decides: from candidate to leader, and what a new leader does before its first decision."""
