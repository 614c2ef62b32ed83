"""``kubeproxy rolling-update``: one ReplicationController replaces another, pod by pod.

options              the command line
command              connect, print, stop
scenario             the story: forward, back, what an interrupted run left
updater              the loop of steps
steps                the arithmetic (pure)
snapshot             both controllers and their pods at one moment (pure)
controller           a ReplicationController and the marks on it (pure)
new_controller       the new one, made from the old one (pure)
manifest             the new one, from a file
deployment_key       the label by which pods of both differ
finish               what comes after the last step: delete, rename, preserve
claim                which process updates a controller
drain_and_delete     old  pods are drained before they are deleted
requests             reading and writing of controllers and pods
progress_output      what is printed; guidance: what is printed where it stops
"""
