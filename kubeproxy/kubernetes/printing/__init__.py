"""Prints objects and errors as kubectl does.

printer      the formats of ``-o``: name, json, yaml, jsonpath
go_encoding  JSON and YAML with exactly the bytes that Go's libraries write
jsonpath     templates in kubectl's dialect of JSONPath
error_text   errors as lines on standard error
"""
