"""Sockets of the data plane.

connect               connects to endpoints without blocking
transparent_dial      dials from a client's address
routes                finds the interface through which the kernel reaches an address
loop_prevention       sets mark and hop limit of dials
port_reservation      reserves ports by binding without listening
original_destination  finds the original destination of a redirected client
reuseport_program     chooses the socket of a port for each client
udp_options           options of UDP sockets towards clients
fd_calls              socket calls on descriptors
"""
