"""What every controller is built from: work queue, expectations, owner references, leader election."""
