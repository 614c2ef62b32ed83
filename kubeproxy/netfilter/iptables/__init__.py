"""The adapter for legacy iptables."""
