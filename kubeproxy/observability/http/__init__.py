"""The HTTP servers.

server            answers requests, whatever clients do
timed_connection  a connection with a deadline
answers           refusals before a page, headers after it
admission         which connections are kept when there are too many
access            which requests are answered
listen_sockets    one address and port, several accept queues
tls               certificates
service_health    health check node ports
"""
