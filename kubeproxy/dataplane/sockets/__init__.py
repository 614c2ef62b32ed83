"""Sockets of the data plane.

connect               connects to endpoints without waiting
transparent_dial      dials from a client's address
routes                finds the interface by which the kernel reaches an address
loop_prevention       mark and hop limit of dials
port_reservation      ports that are bound and do not listen
original_destination  finds the address that a redirected client asked for
reuseport_program     chooses the socket of a port for each client
udp_options           options of UDP sockets towards clients
fd_calls              socket calls on descriptors
"""
