"""Drains that a rollout asks of the node proxies.

requests      what is asked, on the Services of a pod (pure)
reports       what the proxies answer (pure)
proxy_drain   asks and waits, for a command
node_proxies  asks and reads, for the Deployment controller
"""
