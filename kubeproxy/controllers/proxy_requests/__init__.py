"""The requests of rollouts and readiness gates to the node proxies, and the proxies' reports.

requests           the requests about a pod, in an annotation of its Services (pure)
reports            the proxies' reports, in an annotation of their Leases (pure)
proxy_drain        writes requests and waits for the reports, for a command
node_proxies       writes requests and watches reports, for a controller
deployment_drains  the Deployment controller's memory of rollouts that wait for proxies; marks their draining pods
"""
