"""The HTTP client of an API server, for the daemon, the controllers and the commands.

client           sends requests and reads watches, with time limits
policy           the client's limits and retries, also those that a server asks for
kubeconfig       finds server and credentials by client-go's rules; `kubeconfig_file` decodes one file
credentials      renews a client's credentials, and makes HTTP headers from them
plugins          gets credentials from exec plugins and auth providers, in a short-lived `plugin_process`
memory_files     keeps keys in memory, as files without a disk
transport        the HTTP session
decode           decodes watch events and lists; `list_stream` decodes a list while it arrives
errors           the exceptions, by cause; `status` makes them from a server's Status objects
token_bucket     limits the request rate; `request_metrics` counts requests
"""
