"""Objects and errors as kubectl prints them.

printer      ``-o name|json|yaml|jsonpath=...``
go_encoding  JSON and YAML byte for byte as Go's libraries write them
jsonpath     templates of kubectl's JSONPath dialect
error_text   errors as lines on standard error
"""
