"""Decides pods and Immediate claims: what may be had where, who waits, and what is kept for whom.

`schedule_one` decides one pod or claim, `reservation` has what a decision is until the pod runs,
`queue` who waits and what makes them worth another look, `earmarks` what is kept for who starved
and what all of that keeps from others, `schedule_due` the pass over those that wait.
"""
