"""The data plane: accepts clients, dials endpoints and moves the bytes between them.

The data plane imports nothing about Kubernetes, netfilter or the configuration. It is controlled by the messages of
`kubeproxy.dataplane.messages`, and its counters and status are read by the queries of `kubeproxy.dataplane.interface`.

  messages, interface   messages about the wanted state of frontends; queries, and the calls at the end of a process
  in_process, workers/  the two implementations: in this process, or in worker processes
  ports_only            serves nothing and only reserves ports, for a strict kernel path
  engine, context       applies messages to listeners; the state shared by the parts of one process
  movable               connections and sessions that another process may continue
  connection_log        finished connections, for the access log
  loop/                 the event loop (`reactor`), dial timeouts, end-of-turn writes, lag
  tcp/                  listener, shared listener, dial, connection, endpoint probe, half-closed and keepalive sweeps
  udp/                  sessions, batched system calls
  balancing/            schedulers, ejection, session affinity (pure)
  sockets/              socket options, connecting, the client's address, reserved ports, SO_REUSEPORT program
  budgets/              budgets of descriptors, memory and pipes
"""
