"""Commands that change a cluster through its API server; they know nothing of proxying on this node.

create          ``kubeproxy create``
rolling_update  ``kubeproxy rolling-update``
rollout         ``kubeproxy rollout``
interruption    ends a command cleanly at SIGINT or SIGTERM
"""
