"""Scheduling: decides which pods and Immediate claims get devices, and on which node.

`schedule_one` decides one pod or claim. `reservation` holds a decision until the pod runs. `queue`
holds the pods and claims that wait, and knows when it is worth trying them again. `earmarks` keeps
devices for requests that have starved, and `kept` tells placement which devices are kept for
others. `schedule_due` makes a pass over the queue.
"""
