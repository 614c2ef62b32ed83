"""The life of one process: its parts, start, reload, takeover, drain and end.

Begin with `control_process`, which runs the daemon and returns its exit status. Then read `lifecycle`: it makes the
parts and controls the order of start, ready, reload, drain and stop. The parts are made in this order, and each may use
those before it:

kernel_access        the packet filter's adapter, and what this host supports (`host_state`, `node_facts`)
ownership            which instance owns the node (`takeover`: hot restart; `succession`: a start beside another one)
reporting            metrics, health, Events (`service_events`), answers to `load_balancers`
control_plane        tracker, `sources`, proxier (`proxier_events`), drain reports (`drain_reporter`,
                     `report_schedule`, `report_room`, `report_lease`, `cluster_size`), the last state
                     (`state_keeper`, `saved_state`)
drain_hook           answers pods' preStop hooks, when `pod_drains` finds that a pod has no connections left
kernel_path_runtime  the rescue of failed connections (`rescue_control`) and the counting of connections
                     (`flow_accounting`, `kernel_path_counters`)
operator_view        the monitor, the access log, orders (`operator_orders`), and the HTTP servers (`http_servers`,
                     `http_pages`) with their data (`status_collector`, and `connection_trace` with
                     `trace_client`, `trace_explanation` and `kernel_path_trace`)

Before all of these come `process_start`, `current_configuration` (`reload` replaces it, `settings` translates it),
`data_path_policy` and `data_plane_choice` (`own_ports`: how many listeners it may have). `shown_parts` has the parts
that the pages show. The process itself is handled by `signals`, `process_limits`, `check_files`, `startup_progress` and
`shutdown`. `container_init` is the first process of a container.
"""
