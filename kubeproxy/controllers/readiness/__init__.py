"""The controller of the readiness gate `kubeproxy/in-use`: a pod becomes ready when every node's proxy uses it.

gates       which pods wait, for how long at most, and what their condition says (pure)
controller  asks the proxies, and sets the condition
"""
