"""The status document, its text, its page and the trace.

observation     the daemon at one moment; `traffic_history` its last minutes, `recent_warnings` its log
service_index   an observation by Service; `endpoints` are those of a frontend
build           observation and query -> `document`, the status as values
no_match_hints  what to say where a query matches nothing
text            the document as text; `table` is its table of Services, `wording` numbers and states in words
page            the document as HTML
trace_report    the trace of a connection, as values and as text
status_service  answers queries; `routes` are their pages
"""
