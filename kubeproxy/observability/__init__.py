"""What the operator sees: logs, metrics, health, status.

Reads the other rooms through small views (`views`, `kubeproxy.dataplane.interface`, callables that the daemon hands
over) and changes nothing in them.

logging, ratelimit, access_log   one rendering for everybody's log; repeats counted; a line for each connection
health, slis, service_health     healthy, ready (pure); the same as an indicator; the node's answer to load balancers
metrics, state, workers, traffic what is counted here, what is read when somebody scrapes; `exposition` is the scrape
observer, pulse                  the proxier's listener; whether those that serve are well
server, routes, debug            the HTTP servers, and their pages
status                           the live picture as values, made by `status_build` of a `status_sight`, in the order of
                                 `status_index`; `status_board` keeps it, `status_routes` and `status_text` show it
trace                            what would become of a connection, as values and as text
"""
