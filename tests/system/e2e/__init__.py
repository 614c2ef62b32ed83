"""The whole daemon, from outside: real hosts, real netfilter, real traffic, real signals.

`stage` builds the network, the backends and the manifests, and asks; `traffic` keeps asking in the background;
`kernel` reads what the daemon did to its host.
"""
