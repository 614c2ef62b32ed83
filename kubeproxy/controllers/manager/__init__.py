"""The controller manager: one process with a client, informers, leader election and the controllers.

manager  the controllers and what they need, put together
process  signals, the HTTP server, and the end; `pages` and `metrics` are what the server answers
rival    notices another manager that keeps the same objects
"""
