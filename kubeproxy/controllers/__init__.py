"""The controllers of Deployments, ReplicaSets, ReplicationControllers and readiness gates, and the code that they
share.

A controller changes a cluster through its API server. It does not use the code that proxies connections on this node.

manager          clients, informers, leader election and the controllers in one process
deployments      the Deployment controller: rollouts, step by step
replicasets      the controller of ReplicaSets and ReplicationControllers: as many pods as are wanted
readiness        the controller of the readiness gate: a pod is ready when the proxies of all nodes use it
proxy_requests   the requests of rollouts and gates to the node proxies, and their answers

api_types        the objects that controllers read; `informers` has their clients and caches
replicaset_kind  what differs between ReplicaSets and ReplicationControllers
template         compares pod templates
conditions       the conditions in the status of every workload
surge            maxSurge and maxUnavailable in pods
pod_state        decides which pods are active, ready, available, and `pod_ranking` which are deleted first
event_reporter   sends what is reported about an object
"""
