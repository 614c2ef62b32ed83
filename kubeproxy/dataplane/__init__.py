"""From an accepted connection to bytes on the wire.

Knows no Kubernetes, no netfilter and no configuration file; it is told what to do by the messages of
`kubeproxy.dataplane.messages`, and says nothing but counters.

What it is told and asked:
  messages, interface     wanted conditions; what can be asked, wherever it runs
  local, workers          in this very process, or in others
What moves bytes:
  engine                  carries messages out, on a `reactor` (an epoll of our own); `context` is what its parts share
  listener, datagrams     clients by TCP; sessions by UDP, in `batches`
  balancer, journal       who gets a client (pure); what became of it
  affinity                who stays with whom, and how another process learns of it (pure)
  dial, ladder            finds an endpoint that answers, in steps; `connect`, `transparent`: how, and as whom
  trial                   whether an endpoint that was put aside answers again, at no client's cost
  splice, outbox, pipes   bytes both ways; what a turn has to say, said at its end
  sweep, keepalive        connections that nobody ends; endpoints that have vanished
  descriptors, fds        a budget; what is done to them
Processes:
  worker, process         one from inside, and as the control process sees it; `channel` and `wire` between them
  supervisor, parcel      keeps workers in number; what is sent to one at once
  served, spread          the sockets of one frontend, and which of them gets a client
  held, ports             ports that are held before anybody listens
  cores                   how many workers
  orphan                  a worker whose control process is gone
"""
