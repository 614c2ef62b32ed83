"""Worker processes.

pool              the data plane in workers, as the control process sees it; `readings` sums up what they count
supervisor        keeps workers running; `count` is their default number
process           one worker and its channel, as the control process sees them
frontend_sockets  the sockets of a frontend for all workers; `batch` is what goes to a worker at once
columns           the table in which workers count together what is open
channel           frames and descriptors between both sides; `protocol` are the messages (pure)
main              a worker's program; `engine_requests` carries out what the control process asks of its engine
move_sender       hands a worker's connections to another instance; `move_receiver` takes them
orphan            a worker without its control process; `takeover_messages` are those to the owner
"""
