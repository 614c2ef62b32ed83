"""The controller of ReplicaSets and ReplicationControllers.

controller   keeps as many pods as are wanted
status       the status of both
pod_control  creates and deletes pods; `slow_start` is how many at once
"""
