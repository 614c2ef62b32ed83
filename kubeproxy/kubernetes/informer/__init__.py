"""Objects of the API server kept in memory, indexed, with handlers for their changes.

resource      what is watched, and where it is delivered
reflector     lists, then watches; `list_watch_policy` decides its next request (pure)
memory_bound  bounds how much of a list is kept
decode_cache  keeps unchanged objects of a new list from being decoded again
informer      a store with handlers, kept by a reflector
store         objects by key and by index; `mutation_cache` adds what this process has written itself
object_faults logs faults of objects once; `connectivity` logs the loss and the return of the server
"""
