"""The controller manager: one process with clients, informers, leader election and the controllers.

manager  makes and runs the controllers, with their clients and informers
process  runs the process: signals and HTTP servers; `pages` and `metrics` are what the servers answer
rival    detects another controller manager that controls the same objects
"""
