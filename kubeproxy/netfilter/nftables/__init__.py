"""The nftables adapter: one table of our own.

transaction      the table as a value, and the transaction from one to another
transaction_steps  the commands of that transaction, in nft's syntax
declarations     the table's maps, sets and base chains
rules            the rules of the static chains of both data paths; `rescue` has those for failed connections
dynamic_chains   the chains that come and go with the Services
spreads          endpoints in numbered slots
table_change     changes of endpoints and Services, as elements
elements         elements as values, in the syntax of nft and in that of the kernel
affinity         session affinity: maps of clients, and the chains that use them; `affinity_lookup` finds one client
adapter          keeps the kernel equal to a rule set
execute          carries changes out: by netlink if only elements change, and otherwise by the program nft
element_socket   changes elements of maps and sets by netlink, without a program
rescue_sets      the elements of the rescue, which are read and renewed every second
reading          lists the table by netlink; `slot_reading` asks for the slots of one destination
listing          turns a listing into the table as a value
table_names      lists the tables; `watch` notices changes by other processes
spread_counters  reads how many connections the kernel has sent to endpoints
"""
