"""The controller of the readiness gate `kubeproxy/in-use`, with which a pod becomes ready only when every node's proxy
uses it.

gates       decides which pods wait, for how long at most, and what their condition says (pure)
controller  writes requests to the proxies, and sets the condition
"""
