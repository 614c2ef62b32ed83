"""The commands. Large modules, such as the API client, are imported only by commands that need them.

main                the list of commands, and the handling of their errors
go_flags            a click command that parses flags as Go programs do
run                 run the daemon, or one of kube-proxy's actions
check               check configuration and manifests
status              show the status of a running daemon; `status_screen` draws it on a terminal
trace               show the path of a connection
daemon_client       HTTP requests of commands to a running daemon
cleanup             remove packet filter rules
healthcheck         ask a running kubeproxy for its health
create              create objects on an API server, as kubectl create does
controller_manager  run the controllers of Deployments, ReplicaSets and ReplicationControllers
rolling_update      replace a ReplicationController, as kubectl rolling-update did
rollout             follow and change rollouts, as kubectl rollout does
client_flags        the flags of commands that use an API server
completion          completion scripts for shells
kubectl_flags       a click command that parses flags, and exits, as kubectl does
"""
