"""The nftables adapter: one table of our own.

transaction      the table as a value, and the transaction from one to another
transaction_steps  the commands of that transaction, in nft's syntax
declarations     its maps, sets and base chains
rules            the rules of both data paths; `rescue` are those for failed connections
spreads          endpoints in numbered slots; `rebalancing` changes them alone
elements         elements as values, in the syntax of nft and in that of the kernel
affinity         session affinity: maps of clients, and the chains that use them; `affinity_lookup` finds one client
adapter          keeps the kernel equal to a rule set
execute          carries changes out: by netlink where only elements change, else by the program nft
element_socket   changes elements of maps and sets by netlink, without a program
set_elements     the elements of the rescue, which are read and renewed all the time
reading          lists the table by netlink
listing          the table from what is listed
table_names      the tables that there are; `watch` finds changes by other processes
spread_counters  how many connections the kernel has led to endpoints
"""
