"""The resource builder: makes objects, one after the other, from the ``-f`` arguments of a command.

builder          reads, checks and maps objects
file_arguments   finds the sources: files, directories, patterns, URLs, standard input
stream           splits a source's bytes into documents
decode           decodes a document to objects
manifest_object  an object with the position in its source
discovery        lists a server's resources, with a cache on disk; `mapper` finds the resource of a kind
openapi          reads a server's schemas; `validation` checks objects against them
errors           the errors of single objects, with their positions
selector_syntax  parses label selectors
"""
