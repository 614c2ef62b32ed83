"""``kubeproxy create``: objects from files to an API server.

options      the command line
command      runs the command: reads, checks, sends and reports objects
order        which objects have to be created before which
send         creates one object, once and never twice
established  waits until the server serves a new definition
field_check  checks fields before an object is sent
report       writes to standard output and standard error
edit, raw    ``--edit`` and ``--raw``
"""
