"""What both clients share, without any input or output: requests, and what their answers mean."""
