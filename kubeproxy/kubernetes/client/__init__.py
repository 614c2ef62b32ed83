"""The HTTP client of an API server, for the daemon, the controllers and the commands.

client           requests and watches with deadlines
policy           the client's limits and retries, and the waits for which a server asks
kubeconfig       reads server and credentials by client-go's rules; `kubeconfig_file` reads a file into typed values
credentials      renews credentials while a client lives, and makes the headers that carry them
plugins          has kubernetes_asyncio run exec plugins and auth providers, in a short-lived `plugin_process`
memory_files     keeps keys on no disk
transport        the HTTP session
decode           turns answers into values; `list_stream` decodes a list while it arrives
errors           errors by cause; `status` makes them from the Status objects that a server refuses with
token_bucket     limits requests; `request_metrics` counts them
"""
