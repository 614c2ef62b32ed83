"""The resource builder: from the arguments of a command to objects, one after the other.

builder          a query, and the objects that it finds
file_arguments   ``-f`` arguments to sources: files, directories, patterns, web addresses, standard input
stream           bytes to documents, one at a time
decode           a document to objects
manifest_object  one object with its source
discovery        what a server serves, kept on disk; `mapper` finds a resource in it
openapi          the fields that a server knows; `validation` checks objects against them
errors           errors of single objects, each with its position
selector_syntax  label selectors as text
"""
