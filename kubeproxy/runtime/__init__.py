"""Helpers for the processes of the program, which do not belong to any other room.

tasks             background tasks, whose exceptions are always reported
threads           runs blocking work in threads
output            writes to standard output and standard error, for commands
child_process     a child process that is connected by a socket
compiled          imports compiled modules instead of their sources, if there are any
sd_notify         tells the service manager that the process is ready, alive, or stopping
keep_running      restarts a part of the daemon after an internal error
backoff           delays between attempts
few_by_name       logs the first events of an interval by name, and counts the others
time_slice        lets the event loop run during a long task
histogram         counts durations by bucket
privileges        drops capabilities
sandbox           confines a process by `landlock` and by `seccomp`, a filter of `system_calls`
abstract_sockets  lists abstract Unix sockets of this user
classic_bpf       assembles programs of classic BPF, and attaches them to sockets
peer_capability   proves to a peer process that this process has CAP_NET_ADMIN
"""
