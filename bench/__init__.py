"""The benchmark: polybus and a few other libraries, compared with the limits of the machine.

``python -m bench`` starts server and client of each system as separate processes on the loopback, measures a raw peer before
and after, and prints medians: the rate as a ratio to that raw peer, and the processor time per message of both sides. Only
ratios and processor time are comparable between machines.
"""
