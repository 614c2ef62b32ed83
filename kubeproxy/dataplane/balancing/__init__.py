"""The choice of an endpoint for each client.

balancer     picks an endpoint for the byte path, with the help of the others
policies     the policy of each scheduler: `round_robin`, `at_random`, `least_connections`, `hashing`
open_counts  how many connections are open to each endpoint, over all workers
ejections    endpoints that did not answer
affinity     clients that stay with their endpoint
"""
