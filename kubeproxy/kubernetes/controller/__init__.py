"""What every controller is built from.

workqueue        keys that wait; each is processed by one worker at a time
controller       the workers
expectations     creations and deletions that the informer has not reported yet
controller_ref   which objects a controller keeps, adopts or releases (pure); `claim` sends the requests
election_state   which candidate leads, by a Lease (pure); `leader_election` keeps the Lease
"""
