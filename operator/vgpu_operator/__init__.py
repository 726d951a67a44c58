"""The operator: reads what pods ask for, decides which cards serve it, writes the decision."""
