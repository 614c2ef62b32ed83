"""The Deployment controller.

controller      what wakes it, and what it reads
sync            the next step of a rollout, taken; `writes` are its requests
status          the status of a Deployment; `progress` is whether the rollout goes on
rolling_update  the sizes of the steps
proportional    scaling in the middle of a rollout
revisions       which ReplicaSet is which revision
rollback        goes to an earlier one; `retention` deletes the oldest
drain_plan      which pods count, drain and go when node proxies are asked (pure); `drain_sync` carries it out
rollout_status  how a rollout stands
explain         what a rollout waits for; `explain_proxies` is that part of it at the node proxies
"""
