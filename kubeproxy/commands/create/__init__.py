"""``kubeproxy create``: creates objects from files on an API server.

options      the command line
command      runs the command: reads, checks, sends and reports objects
order        decides which objects have to be created before others
send         creates one object exactly once, even if the connection breaks
established  waits until the server serves the kind of a new CustomResourceDefinition
field_check  checks fields before an object is sent
report       writes to standard output and standard error
edit, raw    ``--edit`` and ``--raw``
"""
