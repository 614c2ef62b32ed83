"""The parts that all controllers share.

workqueue        a queue of keys; one worker at a time processes a key
controller       runs workers that take keys from a queue
expectations     tracks creations and deletions that the informer has not reported yet
controller_ref   decides which objects a controller owns, adopts or releases (pure); `claim` sends the requests
election_state   decides who leads by the state of a Lease (pure); `leader_election` renews the Lease
"""
