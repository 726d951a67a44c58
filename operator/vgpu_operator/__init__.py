"""The operator: it reads what pods ask for, decides on devices, and writes the decision."""
