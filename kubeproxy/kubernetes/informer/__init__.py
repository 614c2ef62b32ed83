"""Keeps objects of the API server in memory, with indexes, and with handlers that are called for changes.

resource      the interface between a reflector and the store that it fills
reflector     lists and watches one kind; `list_watch_policy` decides its next request (pure)
memory_bound  limits the memory for the objects of one kind
decode_cache  avoids decoding unchanged objects of a new list
informer      a store with handlers, filled by a reflector
store         objects by key and by index; `mutation_cache` adds this process's own writes
object_faults logs each fault of an object once; `connectivity` logs the loss and the return of the server
"""
