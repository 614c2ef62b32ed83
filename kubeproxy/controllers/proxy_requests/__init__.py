"""What rollouts and readiness gates ask of the node proxies.

requests           what is asked, on the Services of a pod (pure)
reports            what the proxies answer (pure)
proxy_drain        asks and waits, for a command
node_proxies       asks and reads, for a controller
deployment_drains  what the Deployment controller knows of rollouts that ask, and the marks of their pods
"""
