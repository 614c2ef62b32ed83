"""Commands that change a cluster through its API server. They do not use the code that proxies connections on this
node.

create          ``kubeproxy create``
rolling_update  ``kubeproxy rolling-update``
rollout         ``kubeproxy rollout``
interruption    ends a command in an orderly way at SIGINT or SIGTERM
"""
