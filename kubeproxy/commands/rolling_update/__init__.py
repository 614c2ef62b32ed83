"""``kubeproxy rolling-update``: replaces a ReplicationController by another one, pod by pod.

options              the command line
command              connects, carries out one update, and prints its result
update               carries out an update or a rollback, or continues an interrupted run
step_loop            the loop of steps
step_sizes           computes the sizes of both controllers after each step
snapshot             both controllers and their pods at one moment
controller           a ReplicationController, the annotations of an update on it, and the lock of a run
new_controller       makes the new controller from the old one
manifest             reads the new controller from a file
deployment_key       adds the label that distinguishes the pods of both controllers
finish               deletes, renames or preserves the old controller after the last step
drained_deletion     drains old pods through the node proxies before they are deleted
requests             reads and writes controllers and pods
progress_output      prints events and progress
guidance             prints how to continue or undo an update that has stopped
"""
