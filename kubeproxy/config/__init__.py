"""The configuration: kube-proxy's file format KubeProxyConfiguration v1alpha1, its flags, and the project's own
settings.

value_types   values with their own notation: durations, port ranges; `address_types` has addresses and address blocks
schema        declares every setting, with type, default, meaning, flag and effect of a change
              (`kube_proxy_settings`: the groups of kube-proxy; `own_settings`: our own group)
field_info    the meaning, flag and effect of a field, which the schema declares
fields        the schema as a flat table of fields by path
read_text     parses YAML or JSON text to plain data
describe      describes types and values for messages and help
typed_values  converts plain data to typed values, and reports all faults at once
flags         the command line flags, each with the field that it sets
validate      checks rules between fields
default_scheduler  finds the scheduler of Services that do not request one
load          makes a Configuration from file and flags, with all of the above
dump          writes a Configuration as a file
diff          finds the differences between two configurations, and their effect
"""
