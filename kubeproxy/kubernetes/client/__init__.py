"""HTTP clients of an API server.

client           of the proxy and of controllers: requests and watches with deadlines
command_client   of commands: any verb, warnings, waits that the server asks for
kubeconfig       server and credentials, by client-go's rules; `kubeconfig_file` reads a file into typed values
credentials      renewed while a client lives; the headers that they amount to
plugins          credentials from exec plugins
memory_files     keys on no disk
transport        the HTTP session of both
decode           answers to values; `list_stream` decodes a list while it arrives
errors           errors by cause; `status` is a refusal, as kubectl words it
token_bucket     limits requests; `request_metrics` counts them
"""
