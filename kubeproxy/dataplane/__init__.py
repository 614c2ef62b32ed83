"""From an accepted connection to bytes on the wire.

Knows no Kubernetes, no netfilter and no configuration file; it is told what to do by the messages of
`kubeproxy.dataplane.messages`, and says nothing but counters.
"""
