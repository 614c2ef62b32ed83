"""The commands. Heavy modules (event loop, API client, packet filter) are imported only by commands that need them.

main                the list of commands, and how errors end them
go_flags            a command that takes flags as Go programs do
run                 start the daemon, or one of kube-proxy's actions
check               check configuration and manifests
status              show the status of a running daemon; `status_screen` draws it on a terminal
trace               show the path of a connection
daemon_client       HTTP requests of these two to the daemon
cleanup             remove packet filter rules
healthcheck         ask a running kubeproxy for its health
create              objects on an API server, as kubectl create does
controller_manager  run the controllers of Deployments, ReplicaSets and ReplicationControllers
rolling_update      replace a ReplicationController, as kubectl rolling-update did
rollout             follow and change rollouts, as kubectl rollout does
client_flags        flags of every command that talks to an API server
completion          completion scripts for shells
kubectl_flags       a command that takes flags, and ends, as kubectl does
"""
