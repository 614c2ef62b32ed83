"""The nftables adapter."""
