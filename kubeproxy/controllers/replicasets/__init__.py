"""The controller of ReplicaSets and ReplicationControllers.

controller   gives each object its number of pods
status       computes the status of both kinds
pod_control  creates and deletes pods; `slow_start` sends the requests in growing batches
"""
