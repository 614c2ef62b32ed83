"""``kubeproxy create``: objects from files to an API server.

options      the command line
command      the story: read, check, send, report
order        what has to be there before what
send         one object, created once and never twice
established  a definition's resources are waited for
field_check  fields, before an object is sent
report       standard output and standard error
edit, raw    ``--edit`` and ``--raw``
"""
