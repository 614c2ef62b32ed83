"""The packet mark of connections from this proxy to endpoints, which netfilter rules match."""

MARK = 0x1000
"""The only bit of the packet mark that this proxy uses. It differs from the bits of kube-proxy (0x4000, 0x8000), Calico
(0xffff0000), Cilium (0x0f00), the hostport plugin (0x2000), Tailscale (0xff0000) and Istio (0x0539, 0x0fff)."""
