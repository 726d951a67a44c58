"""The kubelet's side of the agent: slots, their late binding to pods, and the records of both."""
