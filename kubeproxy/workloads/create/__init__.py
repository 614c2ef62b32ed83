"""``kubeproxy create``: objects from files to an API server.

options      what the command line says
command      the story: read, check, send, report
order        what has to be there before what
send         one object, created once and never twice
established  a definition's resources are waited for
check        fields, before an object is sent
report       lines in the order of the objects, a line of progress, what an interrupt leaves
edit, raw    ``--edit`` and ``--raw``
"""
