"""The operator: it reads the requests of pods, decides on devices, and writes the decision."""
