"""The Deployment controller.

controller      what causes a sync, and what a sync reads
sync            takes the next step of a rollout; `writes` are its requests
status          computes the status of a Deployment; `progress` decides whether the rollout makes progress
rolling_update  the sizes of the ReplicaSets in each step
proportional    scaling in the middle of a rollout
revisions       the revisions of ReplicaSets
rollback        goes back to an earlier revision; `retention` chooses old ReplicaSets to delete
drain_plan      which pods count, drain or are deleted if a rollout waits for the node proxies; `drain_sync` acts on it
rollout_status  the state of a rollout, as `kubectl rollout status` prints it
explain         describes what a rollout waits for; `explain_proxies` describes a wait for the node proxies
"""
