"""The Deployment controller.

controller      what causes a sync, and what a sync reads
sync            takes the next step of a rollout; `writes` are its requests
status          computes the status of a Deployment; `progress` decides whether the rollout makes progress
rolling_update  the sizes of the steps
proportional    scaling in the middle of a rollout
revisions       the revisions of ReplicaSets
rollback        goes back to an earlier revision; `retention` deletes the oldest
drain_plan      decides which pods count, drain and go if node proxies are asked (pure); `drain_sync` carries it out
rollout_status  how far a rollout is
explain         explains what a rollout waits for; `explain_proxies` does so for the node proxies
"""
