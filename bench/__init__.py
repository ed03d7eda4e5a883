"""The benchmark: polybus and a few other libraries beside the limits of the machine that it runs on.

``python -m bench`` starts server and client of each system in processes of their own on the loopback, measures a raw peer
before and after, and prints medians: the rate as a ratio to that raw peer, and the processor time per message of both sides.
Only ratios and processor time travel from one machine to another.
"""
