"""The operator's word: a file of kube-proxy's KubeProxyConfiguration v1alpha1, and kube-proxy's flags.

values      the leaves: durations, port ranges, addresses, and how they are written
schema      every field with its type, default, meaning, flag, and what a change of it takes
about       what the schema says of a field beside its type and default
fields      the schema as a flat table, read off the types: path -> field
document    YAML or JSON text -> plain data
words       how types and values are spoken of in messages and help
convert     plain data -> typed values, all faults at once
flags       the command line: which flag sets which field, and which of the two wins
validate    what no single field can tell
load        all of these, in order: file and flags -> Configuration, or every fault
dump        Configuration -> file
reload      what differs between two configurations, and what it takes
reference   docs/configuration.md, generated from all this
migration   the tables of docs/migration.md, likewise
"""
