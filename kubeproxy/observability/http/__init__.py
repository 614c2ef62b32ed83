"""The HTTP servers.

server            answers requests, whatever clients do
timed_connection  a connection with a deadline
middlewares       refuse requests before a page, and set headers after it
admission         decides which connections are kept when there are too many
access            decides which requests are answered
listen_sockets    one address and port, several accept queues
tls               certificates
service_health    health check node ports
"""
