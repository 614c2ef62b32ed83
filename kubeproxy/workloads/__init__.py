"""Commands and controllers that change a cluster through its API server; they know nothing of proxying.

create           ``kubeproxy create``
rolling_updater  ``kubeproxy rolling-update``; `interruption` ends both cleanly

The controller manager:

manager          clients, informers, leader election and the controllers in one process
manager_process  signals, HTTP and the end; `manager_pages` and `manager_metrics` are what it answers
objects          the objects that controllers read; `resources` are their clients and informers
template         whether two pod templates mean the same
conditions       in the status of every workload
events           what is reported about an object; `event_reporter` sends it

ReplicaSets and ReplicationControllers:

replicaset_controller  keeps as many pods as are wanted
replicaset_kind        what differs between the two kinds
replicaset_status      the status of both
pod_control            creates and deletes pods; `slow_start` is how many at once
pod_state              which pods are active, ready, available; `pod_ranking` is which go first

Deployments:

deployment_controller  what wakes it, and what it reads
deployment_sync        the next step of a rollout, taken; `deployment_writes` are its requests
deployment_status      its status; `progress` is whether the rollout goes on
rolling_update         the steps' sizes; `surge` is maxSurge and maxUnavailable in pods
proportional           scaling in the middle of a rollout
revisions              which ReplicaSet is which revision
rollback               goes to an earlier one; `retention` deletes the oldest
rollout_command        ``kubeproxy rollout``; `rollout_status` is how a rollout stands
explain                what it waits for; `explain_proxies` is that part of it at the node proxies

Rollouts that know the node proxies:

drain_requests     what is asked of the proxies; `drain_reports` what they answer (pure)
proxy_drain        asks and waits, for a command
deployment_drains  asks and reads, for the controller
drain_plan         which pods count, drain and go (pure); `drain_sync` carries it out
"""
