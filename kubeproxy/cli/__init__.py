"""Commands. Nothing heavy is imported before it is known that it is needed: no event loop, no client, no packet filter.

main         the commands, and how errors end them
gocommand    a command that takes flags as Go programs do
run          start the daemon (or one of kube-proxy's actions in its place)
check        say what is wrong with configuration and manifests
status       show what a running daemon does; `status_screen` on a terminal
trace        say what would become of a connection
ask          how these two reach the daemon
cleanup      remove what we and kube-proxy put into the packet filter
healthcheck  ask a running kubeproxy how it is
manual       docs/kubeproxy.8, made from all of these
create       objects on an API server, as kubectl create does; `client_flags` for every command that talks to one
completion   completion scripts for shells
kubectl_command  a command that takes flags, and ends, as kubectl does
"""
