"""Hot restart: one process takes over from another without losing a connection.

takeover         decides which instance owns the node; the steps of a new instance
search           finds the control process that owns the node, for a new instance
predecessor      the owner, as a new instance sees it
owner            what an owner does for a new instance, and for how long it leaves its rules unchanged
server           the owner's side: answers new instances and orphaned workers (`connected_orphans`)
protocol         messages between two control processes
order            sends an operator's order from a command to the owner
control_socket   the abstract Unix socket at which these messages arrive
serves_enough    decides whether the new instance serves what the owner serves (pure)
instances        finds out whether another instance lives
rule_transfer    the steps around the first transaction of a new instance
orphaned_worker  a worker without its control process, as the owner sees it
reexec           replaces the program by the one on disk
"""
