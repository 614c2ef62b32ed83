"""The configuration: kube-proxy's KubeProxyConfiguration v1alpha1 and kube-proxy's flags.

value_types   values with their own notation: durations, port ranges; `address_types` has addresses and address blocks
schema        the root of every field, with type, default, meaning, flag and effect of a change
              (`kube_proxy_settings`: the groups of kube-proxy; `own_settings`: our own group)
field_info    the information about a field beside its type and default
fields        the schema as a flat table: path -> field
read_text     YAML or JSON text -> plain data
describe      types and values as text for messages and help
typed_values  plain data -> typed values, with all faults at once
flags         the command line: the field of each flag, and whether the flag overrides the file
validate      faults between fields
default_scheduler  the scheduler of Services that do not ask for one
load          all of these: file and flags -> Configuration, or every fault
dump          Configuration -> file
diff          the difference between two configurations and its effect
"""
