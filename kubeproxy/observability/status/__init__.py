"""The status document, its text, its page and the trace.

observation     the state of the daemon at one moment; `traffic_history` has its traffic of the last minutes, and
                `recent_warnings` the end of its log
service_index   an observation arranged by Service; `endpoints` has those of a frontend
build           makes the `document`, the status as values, from an observation and a query
no_match_hints  hints for a query that matches nothing
text            the document as text; `table` has the Services, and `wording` numbers and states in words
page            the document as HTML
trace_report    the trace of a connection, as values and as text
status_service  answers queries; `routes` has the pages for them
"""
