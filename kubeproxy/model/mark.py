"""The packet mark of connections from this proxy to endpoints, for netfilter."""

MARK = 0x1000
"""The one bit of a packet's mark that we use. It is neither kube-proxy's (0x4000, 0x8000) nor one of those that Calico
(0xffff0000), Cilium (0x0f00), the hostport plugin (0x2000), Tailscale (0xff0000) or Istio (0x0539, 0x0fff) use."""
