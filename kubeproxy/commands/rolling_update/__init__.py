"""``kubeproxy rolling-update``: one ReplicationController replaces another, pod by pod.

options              the command line
command              connects, carries one update out, prints its result
update               one whole update: forward, back, or the rest of an interrupted run
step_loop            the loop of steps
step_sizes           computes how many pods each controller has after a step
snapshot             both controllers and their pods at one moment
controller           a ReplicationController, the marks on it, and which run may update it
new_controller       the new controller, made from the old one
manifest             the new controller, from a file
deployment_key       the label by which pods of both controllers differ
finish               the steps after the last pod: delete, rename or preserve
drained_deletion     the deletion of old pods, after the proxies have drained them
requests             reads and writes controllers and pods
progress_output      prints events and progress
guidance             tells how to continue or undo an update that has stopped
"""
