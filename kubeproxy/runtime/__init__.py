"""Helpers that every process needs and no other room owns.

tasks             background tasks, none of which is lost silently
threads           runs blocking work in threads
output            standard output and standard error of the commands
child_process     a child process with a channel
compiled          imports modules in their compiled form, where a build has made it
sd_notify         tells the service manager that the process is ready, alive, or stopping
keep_running      restarts a part that fails by an internal error
backoff           delays between tries
few_by_name       logs the first events of an interval by name, and counts the others
time_slice        lets the event loop run during a long task
histogram         counts durations by bucket
privileges        drops capabilities
sandbox           gives up files and processes: by `landlock`, and by `seccomp`, a filter of `system_calls`
abstract_sockets  abstract Unix sockets of our user
classic_bpf       programs of classic BPF, and their attachment to sockets
peer_capability   proof that a peer has CAP_NET_ADMIN
"""
