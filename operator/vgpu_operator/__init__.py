"""The operator: reads what pods ask for, decides which devices serve it, writes the decision."""
