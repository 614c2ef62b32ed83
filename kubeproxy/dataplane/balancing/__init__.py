"""Choice of the endpoint.

balancer     what the byte path asks; has the others
policies     which policy belongs to which scheduler, and what a policy is; `round_robin`, `at_random`,
             `least_connections`, `hashing`
open_counts  what is open to each endpoint, over all workers
ejections    endpoints that did not answer
affinity     clients that stay with their endpoint
"""
