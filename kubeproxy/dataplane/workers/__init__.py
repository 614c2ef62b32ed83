"""Worker processes.

pool              the data plane in workers, as seen by the control process; `readings` sums up their counters
supervisor        keeps workers running; `count` is their default number
process           one worker and its channel, as seen by the control process
frontend_sockets  the sockets of a frontend for all workers; `batch` sends messages and sockets to a worker
columns           the table in which workers count open connections together
channel           sends frames and descriptors between both sides; `protocol` has the messages (pure)
main              a worker's program; `engine_requests` handles requests about its engine
move_sender       moves a worker's connections to another instance; `move_receiver` takes them over; `move_protocol`
                  has their messages
orphan            a worker without its control process; `takeover_messages` has its messages to the owner
"""
