"""``kubeproxy rolling-update``: one ReplicationController replaces another, pod by pod.

options              the command line
command              connects, carries one update out, prints its result
replacement          the whole story: forward, back, or what an interrupted run left
step_loop            the loop of steps
steps                the arithmetic (pure)
snapshot             both controllers and their pods at one moment (pure)
controller           a ReplicationController, the marks on it, and which run may update it
new_controller       the new controller, made from the old one (pure)
manifest             the new controller, from a file
deployment_key       the label by which pods of both controllers differ
finish               what comes after the last step: delete, rename, preserve
drain_and_delete     drains old pods before they are deleted
requests             reads and writes controllers and pods
progress_output      prints events and progress
guidance             what is printed if the update stops: how to continue or undo it
"""
