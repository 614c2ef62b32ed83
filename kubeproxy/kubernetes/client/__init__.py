"""HTTP clients of an API server.

client           of the proxy and of controllers: requests and watches with deadlines
command_client   of commands: any verb, warnings, waits that the server asks for
kubeconfig       server and credentials of a command, by kubectl's rules
credentials      of long-running clients; `command_credentials` are those of commands
plugins          credentials from exec plugins
transport        the HTTP session of both
decode           answers to values; `list_stream` decodes a list while it arrives
errors           errors by cause; `status` is a refusal, as kubectl words it
token_bucket     limits requests; `request_metrics` counts them
"""
