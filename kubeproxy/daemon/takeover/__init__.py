"""Hot restart: one process takes over from another without losing a connection.

takeover         which instance owns the node, and what a new one does
search           which other control process owns the node, for a new instance
predecessor      the owner, as a new instance sees it
owner            what an owner does for a new instance, and for how long it holds
server           the owner's side: answers new instances and orphaned workers
protocol         messages between two control processes
control_socket   the abstract Unix socket where they arrive
serves_enough    whether the new instance serves what the owner serves (pure)
instances        whether another instance lives
rule_transfer    the first transaction of a new instance
orphaned_worker  a worker without its control process, as the owner sees it
reexec           the process executes the program on disk
"""
