"""The simulated Kimi judges the gateway; here it is judged itself, from plain sockets."""
