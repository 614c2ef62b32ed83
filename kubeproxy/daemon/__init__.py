"""One process's life: its parts, start, reload, takeover, drain and end.

lifecycle            start, ready, reload, drain, stop; `shutdown` is the end of it
assembly             makes every part of the control process and connects them
settings             configuration -> values of other packages (pure)
check_files          the files that a configuration names, opened before a start
sources, data_plane  make the sources and the data plane that the configuration asks for
host_facts           addresses, the Node object, what the kernel supports; `node_facts` is what follows for the proxier
data_paths           which data paths the configuration and this host allow
rescue_control       starts and stops the rescue of failed connections, and applies what it finds to the rules
kernel_flows         connections of the kernel path, counted; `kernel_traffic` adds them to those of the workers
http_servers         the servers of health, metrics and health check node ports; `http_pages` are the first two of them
reload, signals      SIGHUP: what changes while the daemon runs; signals as events to wait for
sd_notify            messages to the service manager
startup_progress     how far a start is
process_limits       descriptors, core dumps, memory
service_events       problems as Kubernetes Events
drain_reporter       this node's drain report; `report_schedule` decides when it is written (pure)
status_collector     the data of the status pages; `connection_trace` is that of a trace,
                     `kernel_path_trace` its steps on the kernel path
takeover             hot restart
"""
