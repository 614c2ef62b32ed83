"""Sockets of the data plane.

connect           connects to endpoints without waiting
transparent_dial  dials from a client's address
routes            by which interface the kernel reaches an address
loop_prevention   mark and hop limit of dials
port_reservation  ports bound and not listening
original_destination  what a redirected client asked for
reuseport         which socket of a port gets which client
udp_options       of UDP sockets towards clients
fd_calls          socket calls on descriptors
"""
