"""The way of one request through the router: its body in, a worker's answer out."""
