"""The Deployment controller.

controller      what wakes it, and what it reads
sync            takes the next step of a rollout; `writes` are its requests
status          the status of a Deployment; `progress` is whether the rollout makes progress
rolling_update  the sizes of the steps
proportional    scaling in the middle of a rollout
revisions       which ReplicaSet is which revision
rollback        goes back to an earlier revision; `retention` deletes the oldest
drain_plan      which pods count, drain and go when node proxies are asked (pure); `drain_sync` carries it out
rollout_status  how far a rollout is
explain         what a rollout waits for; `explain_proxies` is the part at the node proxies
"""
