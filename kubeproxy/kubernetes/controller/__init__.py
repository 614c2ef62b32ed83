"""The parts of which every controller is built.

workqueue        keys that wait; each is processed by one worker at a time
controller       the workers
expectations     creations and deletions that the informer has not reported yet
controller_ref   decides which objects a controller keeps, adopts or releases (pure); `claim` sends the requests
election_state   decides by a Lease which candidate leads (pure); `leader_election` keeps the Lease
"""
